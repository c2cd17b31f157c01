"""Starts client_worker.py processes and gathers what they say."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from support.pages import PAGE_BYTES
from support.waiting import wait_until

WORKER = Path(__file__).with_name("client_worker.py")
STOP_TIMEOUT_S = 15.0
RECOVERY_S = 10.0  # a store that is whole again must serve again within this, unattended


class Worker:
    """One client process. `acked` grows as it goes; `finish` ends it and gives its report.

    `enter`: what its command begins with, to run on another host (support.network_lab).
    """

    def __init__(self, masters: str, name: str, enter: tuple[str, ...] = (), **options: Any) -> None:
        self.name = name
        self.acked: list[str] = []
        self._report: dict[str, Any] | None = None
        merged = {
            "masters": masters,
            "name": name,
            "namespace": "chaos",
            "seed": 1,
            "deadline_ms": 1000,
            "page_bytes": PAGE_BYTES,
            "batch": 8,
            "pages_max": 800,
            "pause_s": 0.02,
            "same_host": True,
            "tcp": True,
            "reads": True,
            "rdma": "off",
            "rdma_library": "",
            **options,
        }
        self.process = subprocess.Popen(
            [*enter, sys.executable, str(WORKER), json.dumps(merged)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_progress(self, when: str, pages: int = 16) -> None:
        """Waits until so many more pages have been acked. `when` is for the error text."""
        had = len(self.acked)
        wait_until(lambda: len(self.acked) >= had + pages, f"{self.name} makes progress {when}", RECOVERY_S)

    def finish(self) -> dict[str, Any]:
        """The worker's report: calls, hits, misses, late, wrong, exceptions, counters."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(STOP_TIMEOUT_S) == 0, (
            f"worker {self.name} ended with {self.process.returncode}"
        )
        self._reader.join(STOP_TIMEOUT_S)
        assert self._report is not None
        return self._report

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._reader.join(STOP_TIMEOUT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                return  # cut off by kill -9
            if message["event"] == "acked":
                self.acked += message["keys"]
            else:
                self._report = message


def assert_unharmed(report: dict[str, Any]) -> None:
    """What may never happen to a client, whatever breaks."""
    assert report["exceptions"] == []
    assert report["wrong"] == []
    assert report["late"] == []
