"""A real store for tests: `kvstore master` and `kvstore segment` as processes that can be stopped,
killed and restarted.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 45.0
STOP_TIMEOUT_S = 15.0


class ServerProcess:
    """One `kvstore` server. `arguments` may name ports of a former life, so that a restart keeps its
    address.
    """

    def __init__(self, name: str, arguments: list[str], ready_event: str, log_dir: Path) -> None:
        self.name = name
        self.arguments = arguments
        self._ready_event = ready_event
        self._log_path = log_dir / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.facts: dict[str, Any] = {}

    def start(self) -> None:
        """Starts it and waits until it says that it is ready; AssertionError with its log otherwise."""
        events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "kvstore.cli.main",
                    *self.arguments,
                    "--json",
                    f"--parent-pid={os.getpid()}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        threading.Thread(target=_read_events, args=(self._process, events), daemon=True).start()
        ends_at = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                event = events.get(timeout=max(0.0, ends_at - time.monotonic()))
            except queue.Empty:
                raise AssertionError(
                    f"{self.name} is not ready after {START_TIMEOUT_S} s\n{self.log()}"
                ) from None
            if event is None:
                raise AssertionError(f"{self.name} ended with {self._process.wait()}\n{self.log()}")
            self.facts.update(event)
            if event.get("event") == self._ready_event:
                return

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def log(self, lines: int = 60) -> str:
        """The end of what it wrote to stderr."""
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-lines:])

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """SIGSTOP on entry, SIGCONT on exit: the process hangs, its sockets stay open."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)
        self._close_pipe()

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after a grace. Idempotent."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
        self._close_pipe()

    def _close_pipe(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        self._process.stdout.close()


class StoreProcesses:
    """One master, one segment, on free ports of 127.0.0.1. A context manager."""

    def __init__(
        self,
        directory: Path,
        *,
        capacity: str = "64MiB",
        advertise_port: int = 0,
        data_port: int = 0,
        token: str = "",
    ) -> None:
        self._token = token
        self._capacity = capacity
        self._directory = directory
        self._advertise_port = advertise_port
        self._data_port = data_port
        directory.mkdir(parents=True, exist_ok=True)
        self.master = ServerProcess("master", self._master_arguments(0, 0), "listening", directory)
        self.segment: ServerProcess | None = None

    def __enter__(self) -> StoreProcesses:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def masters(self) -> str:
        """What clients are given."""
        return f"127.0.0.1:{self.master.facts['directory_port']}"

    def start(self) -> None:
        """Starts both; returns when the segment is attached."""
        self.master.start()
        # A restarted master must be found where clients look for it.
        facts = self.master.facts
        self.master.arguments = self._master_arguments(facts["directory_port"], facts["control_port"])
        self.segment = ServerProcess("segment", self._segment_arguments(), "attached", self._directory)
        self.segment.start()

    def stop(self) -> None:
        """Stops both. Idempotent."""
        if self.segment is not None:
            self.segment.stop()
        self.master.stop()

    def _master_arguments(self, directory_port: int, control_port: int) -> list[str]:
        return [
            "master",
            "--host=127.0.0.1",
            f"--directory-port={directory_port}",
            f"--control-port={control_port}",
            "--http-port=-1",
            f"--data-dir={self._directory / 'master-data'}",
            *([f"--token={self._token}"] if self._token else []),
        ]

    def _segment_arguments(self) -> list[str]:
        return [
            "segment",
            f"--masters=127.0.0.1:{self.master.facts['control_port']}",
            f"--capacity={self._capacity}",
            "--host=127.0.0.1",
            f"--port={self._data_port}",
            f"--advertise-port={self._advertise_port}",
            "--http-port=-1",
            f"--data-dir={self._directory / 'segment-data'}",
            *([f"--token={self._token}"] if self._token else []),
        ]


def _read_events(process: subprocess.Popen[bytes], events: queue.Queue[dict[str, Any] | None]) -> None:
    assert process.stdout is not None
    with contextlib.suppress(ValueError):  # the pipe was closed
        for line in process.stdout:
            with contextlib.suppress(ValueError):  # something a library printed
                event = json.loads(line)
                if isinstance(event, dict):
                    events.put(event)
    events.put(None)
