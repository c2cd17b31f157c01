"""`kvstore up`, as a user runs it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore_client import Client
from support import pages
from support.processes import process_is_gone, wait_gone
from support.waiting import wait_until

UP_TIMEOUT_S = 60.0
EPHEMERAL = (
    "--directory-port=0",
    "--control-port=0",
    "--data-port=0",
    "--http-port=0",
    "--master-http-port=0",
)


class Up:
    """A running `kvstore up --json`."""

    def __init__(self, directory: Path, *options: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "kvstore.cli.main", "up", "--json", "--size=32MiB"),
                *(f"--data-dir={directory}", *EPHEMERAL, *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "XDG_RUNTIME_DIR": str(directory), **environment},
        )

    def summary(self) -> dict[str, Any]:
        """Waits for the line of JSON."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"ended with {self.process.wait(10)}: {self.errors()}"
        summary: dict[str, Any] = json.loads(line)
        return summary

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()


@pytest.fixture
def start_up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*options: str, **environment: str) -> Up:
        up = Up(tmp_path, *options, **environment)
        started.append(up)
        return up

    yield start
    for up in started:
        if up.process.poll() is None:
            up.process.terminate()
            up.process.wait(20)
        for pipe in (up.process.stdout, up.process.stderr):
            if pipe is not None:
                pipe.close()


def test_up_brings_a_store_that_works_and_the_flags_that_attach_sglang_to_it(
    start_up: Callable[..., Up],
) -> None:
    summary = start_up().summary()
    assert summary["health"].startswith("ok")
    config = json.loads(shlex.split(summary["sglang_flags"])[-1])
    assert config["masters"] == summary["masters"]
    with Client(config["masters"]) as client:
        namespace = client.namespace("n")
        assert namespace.put("k", pages.content("k"))
        assert namespace.get("k") == pages.content("k")


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_everything_within_seconds(
    start_up: Callable[..., Up], number: signal.Signals
) -> None:
    up = start_up()
    children = list(up.summary()["pids"].values())
    assert len(children) == 2 and all(children)
    started = time.monotonic()
    up.process.send_signal(number)
    assert up.process.wait(15) == 0
    assert time.monotonic() - started < 8
    assert all(map(process_is_gone, children))
    assert "Traceback" not in up.errors()


def test_no_child_survives_when_up_itself_is_killed(start_up: Callable[..., Up]) -> None:
    up = start_up()
    children = list(up.summary()["pids"].values())
    up.process.kill()
    up.process.wait(10)
    wait_gone(children)


def test_a_killed_child_is_started_again_on_its_old_port_and_the_store_works_again(
    start_up: Callable[..., Up],
) -> None:
    up = start_up()
    summary = up.summary()
    with Client(summary["masters"], deadline_ms=500) as client:
        namespace = client.namespace("n")
        for name in ("segment", "master"):
            os.kill(summary["pids"][name], signal.SIGKILL)
            wait_until(
                lambda name=name: namespace.put(f"after-{name}", b"x"), f"puts work without the old {name}"
            )
    up.process.terminate()
    up.process.wait(15)
    errors = up.errors()
    assert "segment was killed by SIGKILL; starting it again" in errors
    assert "master was killed by SIGKILL; starting it again" in errors


def test_the_token_file_guards_the_store_and_its_secret_is_not_printed(
    start_up: Callable[..., Up], tmp_path: Path
) -> None:
    secret = tmp_path / "token"
    secret.write_text("hunter2\n")
    # What the environment says of the servers' own tokens gives way.
    up = start_up(
        f"--token-file={secret}", KVSTORE_MASTER_TOKEN_FILE=str(secret), KVSTORE_SEGMENT_TOKEN="other"
    )
    summary = up.summary()
    assert "hunter2" not in json.dumps(summary)
    assert summary["health"].startswith("ok")
    with Client(summary["masters"], token="hunter2") as insider, Client(summary["masters"]) as outsider:
        assert insider.namespace("n").put("k", b"v")
        assert not outsider.namespace("n").put("other", b"v")
        assert outsider.namespace("n").get("k") is None


@pytest.mark.parametrize("variable", ["KVSTORE_MASTER_TOKEN", "KVSTORE_SEGMENT_TOKEN"])
def test_a_token_of_one_server_alone_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "hunter2")
    code, errors = run_up("--size=32MiB", f"--data-dir={tmp_path}", *EPHEMERAL)
    assert code == 2
    assert variable in errors and "--token-file" in errors and "hunter2" not in errors


def run_up(*options: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "kvstore.cli.main", "up", *options],
        capture_output=True,
        text=True,
        timeout=UP_TIMEOUT_S,
    )
    return done.returncode, done.stderr


def test_a_size_that_does_not_fit_is_refused_with_the_numbers(tmp_path: Path) -> None:
    code, errors = run_up("--size=900TiB", f"--data-dir={tmp_path}")
    assert code == 1
    assert f"{900 << 40} bytes" in errors and "ask for at most" in errors
    assert "Traceback" not in errors


def test_a_taken_port_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, errors = run_up(
            "--size=32MiB", f"--data-dir={tmp_path}", *EPHEMERAL[:2], f"--data-port={port}", *EPHEMERAL[3:]
        )
    assert code == 1
    assert f"127.0.0.1:{port}" in errors and "--port" in errors
    assert "Traceback" not in errors


def test_a_data_directory_in_use_is_refused(start_up: Callable[..., Up], tmp_path: Path) -> None:
    start_up().summary()
    code, errors = run_up("--size=32MiB", f"--data-dir={tmp_path}", *EPHEMERAL)
    assert code == 1
    assert str(tmp_path) in errors
    assert "Traceback" not in errors
