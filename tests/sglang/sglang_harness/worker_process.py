"""The test's end of a worker process."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from sglang_harness.case import Case

HARNESS_PARENT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 600.0  # importing SGLang on a busy machine
CALL_TIMEOUT_S = 60.0


class WorkerProcess:
    """Starts `sglang_harness.worker`; a context manager that ends it. Every answer has a deadline.

    The constructor returns at once, so that several can import SGLang at the same time; `wait_ready` waits.
    """

    def __init__(self, name: str, log_dir: Path) -> None:
        self.name = name
        self.log_path = log_dir / f"{name}.log"
        env = os.environ | {
            "PYTHONPATH": f"{HARNESS_PARENT}:{HARNESS_PARENT / 'shims'}",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sglang_harness.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                cwd=log_dir,
            )
        self._buffer = b""

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Of the worker."""
        return self._process.pid

    def wait_ready(self) -> None:
        """Until it has imported SGLang."""
        assert json.loads(self._read_line(START_TIMEOUT_S)) == {"ready": True}

    def write(self, case: Case) -> dict[str, Any]:
        """Backs the case's pages up."""
        return self.call("write", case)

    def read(self, case: Case) -> dict[str, Any]:
        """Prefetches the case's pages."""
        return self.call("read", case)

    def call(
        self, verb: str, case: Case, timeout_s: float = CALL_TIMEOUT_S, **more: object
    ) -> dict[str, Any]:
        """One command, one answer; AssertionError with the worker's log when it fails. `more`: what the verb takes beside the
        case."""
        assert self._process.stdin is not None
        command = {"verb": verb, "case": case.to_json(), "more": more}
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._read_line(timeout_s))
        if "error" in answer:
            raise AssertionError(f"worker {self.name}: {answer['error']}\n{self.log_tail()}")
        return answer

    def _read_line(self, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([fd], [], [], timeout_s)
            data = os.read(fd, 1 << 20) if ready else b""
            if not data:
                why = "ended" if ready else f"gave no answer in {timeout_s} s"
                raise AssertionError(f"worker {self.name} {why}\n{self.log_tail()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def log_tail(self, lines: int = 40) -> str:
        """The end of the worker's log."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """Ends the worker: closes stdin, then kills what does not go."""
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(timeout=5)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
