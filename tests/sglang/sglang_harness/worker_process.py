"""The test's end of a worker process."""

import os
import subprocess
import sys
from pathlib import Path

from sglang_harness.worker_talk import WorkerTalk

HARNESS_PARENT = Path(__file__).resolve().parent.parent


class WorkerProcess(WorkerTalk):
    """Starts `sglang_harness.worker`; a context manager that ends it. Every answer has a deadline.

    The constructor returns at once, so that several can import SGLang at the same time; `wait_ready` waits.
    """

    def __init__(self, name: str, log_dir: Path) -> None:
        super().__init__(name, log_dir / f"{name}.log")
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

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Of the worker."""
        return self._process.pid

    def _send(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def _answers_fd(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

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
