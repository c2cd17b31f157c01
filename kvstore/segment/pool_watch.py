"""Looks after the file that a pool is: whether somebody takes its memory or its name away while it is used.

Memory that is gone is a SIGBUS for whoever touches it, and a page of zeros where it is given back. So a segment whose pool was made
shorter, or had holes punched into it, gives the file its size back, for clients that have it mapped too, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvstore.common.logs import log_event
from kvstore.segment.errors import PoolLost

logger = logging.getLogger(__name__)

PERIOD_S = 0.5


@dataclass(frozen=True)
class PoolFile:
    """Which file it is, whatever its path names later, and what it had when it was made."""

    path: Path
    device: int
    inode: int
    size_bytes: int
    memory_bytes: int

    @classmethod
    def at(cls, path: Path) -> PoolFile:
        """OSError when there is none."""
        status = os.lstat(path)
        return cls(path, status.st_dev, status.st_ino, status.st_size, status.st_blocks * 512)

    def now(self) -> PoolFile | None:
        """None when it was removed or replaced."""
        try:
            found = PoolFile.at(self.path)
        except OSError:
            return None
        return found if (found.device, found.inode) == (self.device, self.inode) else None

    def loss(self) -> str:
        """What it lacks, for people; empty when it is whole, and when it can't be seen any more."""
        now = self.now()
        if now is None:
            return ""
        if now.size_bytes < self.size_bytes:
            return f"somebody made it shorter: it has {now.size_bytes} bytes of {self.size_bytes}"
        if now.memory_bytes < self.memory_bytes:
            return f"somebody took memory of it away: it has {now.memory_bytes} bytes of {self.memory_bytes}"
        return ""

    def discard(self) -> None:
        """Gives it its size back, so that nobody who has it mapped dies, and removes it: what it holds is of no use."""
        with contextlib.suppress(OSError):
            if self.now() is not None:
                os.truncate(self.path, self.size_bytes)
                self.path.unlink(missing_ok=True)


async def watch_pool(file: PoolFile, on_lost: Callable[[PoolLost], None], period_s: float = PERIOD_S) -> None:
    """Until its memory is gone, which `on_lost` is told once; for ever then."""
    while file.now() is not None:
        if loss := file.loss():
            file.discard()
            lost = PoolLost(
                f"the pool file {file.path} is of no use any more: {loss}. It is removed; started again the segment begins "
                "with an empty pool"
            )
            log_event(logger, logging.ERROR, "pool_lost", file=str(file.path), why=loss)
            on_lost(lost)
            break
        await asyncio.sleep(period_s)
    else:
        log_event(
            logger,
            logging.WARNING,
            "pool_not_kept",
            why=f"{file.path} was removed or replaced while it was used: the segment goes on with its memory, which ends with it",
        )
    await asyncio.Event().wait()
