"""A disk that is slow, hangs, fails or is full, for the files of real servers under one directory (disk_shim.cpp, preloaded)."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".cpp")


@functools.cache
def library() -> Path:
    """Compiled once a process of tests."""
    target = Path(tempfile.mkdtemp(prefix="kvstore-disk-shim-")) / "disk_shim.so"
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(target), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, timeout=120)
    return target


class Disk:
    """What holds for files under `directory`, in processes that are started with `environment`."""

    def __init__(self, directory: Path, beside: Path) -> None:
        """`beside`: where the shim's own files lie, outside of `directory`."""
        self._control = beside / "disk-control"
        self._calls = beside / "disk-calls"
        self.is_well()
        self.environment = {
            "LD_PRELOAD": str(library()),
            "DISK_SHIM_DIRECTORY": str(directory),
            "DISK_SHIM_CONTROL": str(self._control),
            "DISK_SHIM_CALLS": str(self._calls),
        }

    def is_well(self) -> None:
        self._set()

    def is_slow(self, sync_ms: int, write_ms: int = 0) -> None:
        """Each sync and each write takes so long; `is_well` also ends those that wait."""
        self._set(sync_ms=sync_ms, write_ms=write_ms)

    def hangs(self) -> None:
        self.is_slow(3_600_000, 3_600_000)

    def fails(self, error: int) -> None:
        self._set(error=error)

    def is_full(self) -> None:
        """No file can be made, or grow; what is there can be overwritten."""
        self._set(full=1)

    def lines(self, of: str = "") -> list[str]:
        """ "fdatasync PATH" or "fsync PATH" for each sync of a file whose path has `of` in it."""
        if not self._calls.exists():
            return []
        return [line for line in self._calls.read_text().splitlines() if of in line]

    def _set(self, sync_ms: int = 0, write_ms: int = 0, error: int = 0, full: int = 0) -> None:
        fresh = self._control.with_suffix(".new")
        fresh.write_text(f"{sync_ms} {write_ms} {error} {full}\n")
        os.replace(fresh, self._control)
