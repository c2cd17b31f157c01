"""Servers whose stderr nobody reads: a pipe that is full from the start."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.master_peers import DirectoryPeer
from support.processes import is_ready
from support.waiting import wait_until

COMMAND = (sys.executable, "-m", "kvstore.cli.main")
# SIGTERM with a client connected, on a machine that does other things too; half a second of it is the last flush.
STOP_TIMEOUT_S = 5.0
START_TIMEOUT_S = 30.0
Start = Callable[..., "UnreadProcess"]


class UnreadProcess:
    """A `kvstore` command with a full pipe as its stderr."""

    def __init__(self, *arguments: str) -> None:
        self.reading, writing = os.pipe()
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, b".\n" * 512)
        os.set_blocking(writing, True)
        self.process = subprocess.Popen(
            [*COMMAND, *arguments, "--json"], stdout=subprocess.PIPE, stderr=writing, text=True
        )
        os.close(writing)

    def event(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_TIMEOUT_S)
        assert readable, "it hangs"
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        return said

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)

    def read_log(self) -> str:
        """What is in the pipe, once the process has ended."""
        text = b""
        while data := os.read(self.reading, 1 << 16):
            text += data
        return text.decode().replace(".\n", "")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()
        os.close(self.reading)


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[UnreadProcess] = []

    def run(*arguments: str) -> UnreadProcess:
        started.append(UnreadProcess(*arguments))
        return started[-1]

    yield run
    for process in reversed(started):
        process.close()


def master_arguments(directory: Path) -> list[str]:
    ports = [f"--{name}-port=0" for name in ("directory", "control", "http")]
    return ["master", *ports, f"--metadata=rocksdb://{directory}/metadata", "--log-level=debug"]


async def test_a_master_answers_and_ends_in_time(start: Start, tmp_path: Path) -> None:
    master = start(*master_arguments(tmp_path))
    ports = master.event()
    peer = await DirectoryPeer.greeted(ports["directory_port"])
    for number in range(20):
        await peer.open_namespace(model=f"m{number}")  # a line each
    assert is_ready(ports["http_port"])
    assert master.end() == 0
    peer.close()
    assert "master_stopped" not in master.read_log(), "somebody has read the pipe: this test tests nothing"


def test_a_segment_answers_and_ends_in_time(start: Start, tmp_path: Path) -> None:
    segment = start(
        "segment",
        "--masters=127.0.0.1:9",
        "--capacity=64MiB",
        "--port=0",
        "--http-port=0",
        "--unix-path=off",
        f"--data-dir={tmp_path}",
        "--log-level=debug",
    )
    port = segment.event()["http_port"]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()
    assert segment.end() == 0


def test_a_whole_store_starts_answers_and_ends(start: Start, tmp_path: Path) -> None:
    ports = [f"--{name}-port=0" for name in ("directory", "control", "master-http", "data", "http")]
    store = start("up", "--size=64MiB", f"--data-dir={tmp_path}", *ports)
    up = store.event()
    assert up["health"].startswith("ok"), up
    master = up["pids"]["master"]
    os.kill(master, signal.SIGKILL)
    wait_until(lambda: is_ready_soon(up["master"]["http_port"]), "its master is there again")
    store.process.send_signal(signal.SIGTERM)
    assert store.process.wait(4 * STOP_TIMEOUT_S) == 0


def is_ready_soon(port: int) -> bool:
    with contextlib.suppress(OSError):
        return is_ready(port)
    return False


def test_what_ends_a_server_is_still_said_when_somebody_reads(tmp_path: Path) -> None:
    blocked = tmp_path / "metadata"
    blocked.write_text("a file where the directory should be")
    began = time.monotonic()
    done = subprocess.run(
        [*COMMAND, *master_arguments(tmp_path)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("kvstore: ")
    assert time.monotonic() - began < 25


CRASHING = """
import kvstore.common.logs as logs
logs.configure_logging("info", "json")
import threading
def fail():
    raise RuntimeError("a thread has gone wrong")
thread = threading.Thread(target=fail)
thread.start()
thread.join()
raise RuntimeError("nobody expected this")
"""


def test_a_crash_leaves_its_traceback_in_the_log() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CRASHING], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["crashed", "crashed"]
    assert (
        "a thread has gone wrong" in lines[0]["traceback"] and "nobody expected this" in lines[1]["traceback"]
    )
