"""Real server processes for tests: started, killed, stopped and continued; none outlives the test process."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kvstore_client.address import Address
from support.waiting import wait_until

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0


class ServerProcess:
    """One `kvstore <command> --json` process. Its log goes to a file, its announcements to `events`.

    `enter`: what the command begins with, to run on another host (support.network_lab).
    """

    def __init__(
        self,
        arguments: list[str],
        log_path: Path,
        env: dict[str, str] | None = None,
        enter: tuple[str, ...] = (),
    ) -> None:
        self.log_path = log_path
        self.events: list[dict[str, Any]] = []
        self._arrived: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with open(log_path, "ab") as log:
            self.process = subprocess.Popen(
                [
                    *enter,
                    sys.executable,
                    "-m",
                    "kvstore.cli.main",
                    *arguments,
                    "--json",
                    f"--parent-pid={os.getpid()}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **(env or {})},
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_event(self, event: str, timeout_s: float = START_TIMEOUT_S) -> dict[str, Any]:
        """The announcement named `event`; AssertionError with the log when the process ends or time is up."""
        for seen in self.events:
            if seen["event"] == event:
                return seen
        while True:
            try:
                arrived = self._arrived.get(timeout=timeout_s)
            except queue.Empty:
                raise AssertionError(f"no {event!r} within {timeout_s:g} s:\n{self.log()}") from None
            if arrived is None:
                raise AssertionError(f"ended with {self.process.wait(5)} before {event!r}:\n{self.log()}")
            self.events.append(arrived)
            if arrived["event"] == event:
                return arrived

    def kill(self) -> None:
        """kill -9, and waits until the process is gone."""
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def pause(self) -> None:
        """SIGSTOP: when this returns no thread of the process runs any more; its sockets stay open."""
        self.process.send_signal(signal.SIGSTOP)
        wait_until(self._is_stopped, "the process stops", timeout_s=STOP_TIMEOUT_S)

    def _is_stopped(self) -> bool:
        states = []
        for stat in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that just ended
                states.append(stat.read_text().rpartition(")")[2].split()[0])
        return bool(states) and all(state in "TtZX" for state in states)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM; the exit code. Kills, and fails, when it does not end in time."""
        self.process.send_signal(signal.SIGTERM)
        self.process.send_signal(signal.SIGCONT)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"did not stop within {STOP_TIMEOUT_S:g} s:\n{self.log()}") from None

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")[-8000:]

    def close(self) -> None:
        """Makes sure that nothing is left of it."""
        if self.process.poll() is None:
            self.kill()
        self._reader.join(STOP_TIMEOUT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._arrived.put(json.loads(line))
        self._arrived.put(None)


class Cluster:
    """A master and segments as processes of their own.

    A restarted one gets its old ports unless told otherwise.
    """

    def __init__(
        self,
        directory: Path,
        capacity: str = "256MiB",
        host: str = "127.0.0.1",
        reached_at: str = "127.0.0.1",
    ) -> None:
        """`host`: what all listen on; `reached_at`: an address of it, for peers."""
        self._directory = directory
        self._capacity = capacity
        self._host = host
        self._reached_at = reached_at
        self._all: list[ServerProcess] = []
        self.master: ServerProcess
        self.master_ports: dict[str, Any] = {}
        self.segments: dict[str, ServerProcess] = {}

    @property
    def masters(self) -> str:
        """The directory address, as clients take it."""
        return str(Address(self._reached_at, self.master_ports["directory_port"]))

    @property
    def control(self) -> str:
        return str(Address(self._reached_at, self.master_ports["control_port"]))

    def start_master(self, options: tuple[str, ...] = ()) -> ServerProcess:
        ports = self.master_ports
        self.master = self._launch(
            "master",
            "master",
            f"--host={self._host}",
            f"--advertise-host={self._reached_at}",
            f"--directory-port={ports.get('directory_port', 0)}",
            f"--control-port={ports.get('control_port', 0)}",
            f"--http-port={ports.get('http_port', 0)}",
            f"--metadata=rocksdb://{quote(str(self._directory / 'master'))}",
            *options,
        )
        self.master_ports = self.master.wait_event("listening")
        return self.master

    def start_segment(
        self, name: str = "segment", port: int = 0, options: tuple[str, ...] = (), wait: bool = True
    ) -> ServerProcess:
        segment = self._launch(
            name,
            "segment",
            f"--masters={self.control}",
            f"--capacity={self._capacity}",
            f"--host={self._host}",
            f"--advertise-host={self._reached_at}",
            f"--port={port}",
            f"--http-host={self._host}",
            "--http-port=0",
            f"--unix-path={self._directory / name}.sock",
            f"--data-dir={self._directory / name}",
            *options,
        )
        self.segments[name] = segment
        if wait:
            segment.wait_event("attached")
        return segment

    def close(self) -> None:
        for process in reversed(self._all):
            process.close()

    def logs(self) -> str:
        return "\n".join(f"---- {process.log_path.name}\n{process.log()}" for process in self._all)

    def _launch(self, name: str, *arguments: str) -> ServerProcess:
        process = ServerProcess(list(arguments), self._directory / f"{name}.log")
        self._all.append(process)
        return process


def segment_metrics(segment: ServerProcess) -> dict[str, float]:
    """The segment's metrics by name, without `kvstore_segment_` and `_total`."""
    port = segment.wait_event("listening")["http_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    values = {}
    for line in lines:
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name.removeprefix("kvstore_segment_").removesuffix("_total")] = float(value)
    return values


def is_ready(http_port: int) -> bool:
    """Whether /readyz says so."""
    connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=10)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    finally:
        connection.close()


def process_is_gone(pid: int) -> bool:
    """True when no process, not even a zombie of somebody else, has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = (
        Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        if Path(f"/proc/{pid}").exists()
        else "X"
    )
    return state in "ZX"


def wait_gone(pids: list[int], timeout_s: float = STOP_TIMEOUT_S) -> None:
    wait_until(lambda: all(map(process_is_gone, pids)), f"processes {pids} are gone", timeout_s)
