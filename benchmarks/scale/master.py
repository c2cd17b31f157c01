"""The master that is measured: a process as an operator would start it, and what the kernel and its metrics say of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Master:
    def __init__(self, directory: Path, metadata: str = "") -> None:
        """`metadata`: a store of its own in `directory` by default."""
        self._directory = directory
        self._metadata = metadata or f"rocksdb://{directory / 'metadata'}"
        self._process: subprocess.Popen[str] | None = None
        self.ports: dict[str, Any] = {}

    def start(self) -> float:
        """Seconds until it listens."""
        began = time.monotonic()
        with open(self._directory / "master.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    str(Path(sys.executable).parent / "kvstore"),
                    "master",
                    f"--metadata={self._metadata}",
                    *(f"--{name}-port=0" for name in ("directory", "control", "http")),
                    "--json",
                    f"--parent-pid={os.getpid()}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if said["event"] == "listening":
                self.ports = said
                return time.monotonic() - began
        raise RuntimeError(
            f"the master did not start: {(self._directory / 'master.log').read_text()[-2000:]}"
        )

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    @property
    def cpu_s(self) -> float:
        """That it and the process of its metadata store have used."""
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self._pids()]
        return sum(int(fields[11]) + int(fields[12]) for fields in stats) * _TICK_S

    @property
    def resident_bytes(self) -> int:
        """Likewise."""
        return (
            sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self._pids()) * _PAGE_BYTES
        )

    @property
    def metadata_bytes(self) -> int:
        return sum(
            file.stat().st_size for file in (self._directory / "metadata").rglob("*") if file.is_file()
        )

    def metrics(self) -> dict[str, float]:
        """By name, without those that have labels."""
        url = f"http://127.0.0.1:{self.ports['http_port']}/metrics"
        with urllib.request.urlopen(url, timeout=30) as reply:
            lines = reply.read().decode().splitlines()
        return {
            line.split()[0]: float(line.split()[1])
            for line in lines
            if not line.startswith("#") and "{" not in line
        }

    def _pids(self) -> list[str]:
        assert self._process is not None
        pid = str(self._process.pid)
        return [pid, *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
