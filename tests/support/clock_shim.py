"""A wall clock that steps, for real servers (clock_shim.cpp, preloaded)."""

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
    target = Path(tempfile.mkdtemp(prefix="kvstore-clock-shim-")) / "clock_shim.so"
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(target), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, timeout=120)
    return target


class WallClock:
    """That of processes which are started with `environment`; their other clocks go on as ever."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.steps_to(0)
        self.environment = {"LD_PRELOAD": str(library()), "CLOCK_SHIM_FILE": str(file)}

    def steps_to(self, seconds: int) -> None:
        """Away from the true time; behind it when negative."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(str(seconds))
        os.replace(fresh, self._file)
