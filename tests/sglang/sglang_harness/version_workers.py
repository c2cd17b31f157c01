"""The test's end of `fork_server.py`: workers of any SGLang version."""

import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

from sglang_harness.worker_process import HARNESS_PARENT
from sglang_harness.worker_talk import START_TIMEOUT_S, WorkerTalk

POLL_S = 0.05


class ForkServer:
    """Starts it; a context manager that ends it and what it has forked."""

    def __init__(self, directory: Path) -> None:
        """`directory`: for its log, its socket (whose path must be short) and the workers' logs."""
        self.directory = directory
        self._socket_path = directory / "fork"
        self._log_path = directory / "fork_server.log"
        paths = (HARNESS_PARENT, HARNESS_PARENT / "shims")
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sglang_harness.fork_server", str(self._socket_path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | one_thread | {"PYTHONPATH": ":".join(map(str, paths))},
                cwd=directory,
            )
        self._workers: list[VersionWorker] = []

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.stop()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=5)

    def worker(self, name: str, version: str, overlay: Path | None) -> "VersionWorker":
        """A new worker, ready: of that version, which lies in `overlay` or is the installed one."""
        connection = self._connect(time.monotonic() + START_TIMEOUT_S)
        worker = VersionWorker(connection, name, version, overlay, self.directory)
        self._workers.append(worker)
        return worker

    def _connect(self, ends_at: float) -> socket.socket:
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(self._socket_path))
                return connection
            except OSError as error:
                connection.close()
                if self._process.poll() is not None or time.monotonic() > ends_at:
                    raise AssertionError(f"no fork server: {self._log_path.read_text()[-4000:]}") from error
            time.sleep(POLL_S)


class VersionWorker(WorkerTalk):
    """A worker; every answer has a deadline."""

    def __init__(
        self, connection: socket.socket, name: str, version: str, overlay: Path | None, log_dir: Path
    ) -> None:
        super().__init__(name, log_dir / f"{name}.log")
        self._connection = connection
        where = None if overlay is None else str(overlay)
        order = {"version": version, "overlay": where, "log": str(self.log_path)}
        self._send(json.dumps(order).encode() + b"\n")
        self.wait_ready()

    def stop(self, timeout_s: float = 15.0) -> bool:
        """Ends the worker as a server ends, and waits; whether it ended in time."""
        if self._connection.fileno() < 0:
            return True
        self._connection.shutdown(socket.SHUT_WR)
        ready, _, _ = select.select([self._connection], [], [], timeout_s)
        self._connection.close()
        return bool(ready)

    def _send(self, line: bytes) -> None:
        self._connection.sendall(line)

    def _answers_fd(self) -> int:
        return self._connection.fileno()
