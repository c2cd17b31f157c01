"""What a test says to a worker and hears of it, a line of JSON each, however the worker was started."""

import json
import os
import select
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from sglang_harness.case import Case

START_TIMEOUT_S = 600.0  # importing SGLang on a busy machine
CALL_TIMEOUT_S = 60.0


class WorkerTalk(ABC):
    """One command, one answer; every answer has a deadline."""

    def __init__(self, name: str, log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self._buffer = b""

    @abstractmethod
    def _send(self, line: bytes) -> None: ...

    @abstractmethod
    def _answers_fd(self) -> int:
        """Where answers are read from."""

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
        """The answer; AssertionError with the worker's log when it fails. `more`: what the verb takes beside the case."""
        self._send(json.dumps({"verb": verb, "case": case.to_json(), "more": more}).encode() + b"\n")
        answer: dict[str, Any] = json.loads(self._read_line(timeout_s))
        if "error" in answer:
            raise AssertionError(f"worker {self.name}: {answer['error']}\n{self.log_tail()}")
        return answer

    def log_tail(self, lines: int = 40) -> str:
        """The end of the worker's log."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _read_line(self, timeout_s: float) -> bytes:
        fd = self._answers_fd()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([fd], [], [], timeout_s)
            data = os.read(fd, 1 << 20) if ready else b""
            if not data:
                why = "ended" if ready else f"gave no answer in {timeout_s} s"
                raise AssertionError(f"worker {self.name} {why}\n{self.log_tail()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line
