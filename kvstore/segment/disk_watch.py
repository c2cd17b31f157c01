"""Says in the log that the disk tier is in trouble or well again, which the native store only counts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kvstore.common.logs import log_event

logger = logging.getLogger(__name__)

PERIOD_S = 1.0

_TROUBLES = {1: "it fails", 2: "it is too slow, or hangs"}
_REMEDY = (
    "see `dmesg` and the free space of its file system; until it is well again pages are served from memory alone, and "
    "nothing has to be done here afterwards"
)


def say_disk(stats: dict[str, int], path: str) -> None:
    """What the tier began with."""
    log_event(
        logger,
        logging.INFO,
        "disk_opened",
        path=path,
        capacity_bytes=stats["disk_capacity_bytes"],
        pages=stats["disk_recovered_pages"],
        seconds=stats["disk_recovery_ms"] / 1000,
        direct=bool(stats["disk_direct"]),
        preallocated=bool(stats["disk_preallocated"]),
    )


async def watch_disk(stats: Callable[[], dict[str, int]], path: str, period_s: float = PERIOD_S) -> None:
    """For ever: looks at what the store has found."""
    known = {"read": 0, "write": 0}
    while True:
        counted = await asyncio.to_thread(stats)
        for what, before in known.items():
            alarm = known[what] = counted[f"disk_{what}_alarm"]
            if alarm and not before:
                log_event(
                    logger,
                    logging.ERROR,
                    "disk_alarm",
                    path=path,
                    on=what,
                    why=_TROUBLES.get(alarm, str(alarm)),
                    remedy=_REMEDY,
                )
            elif before and not alarm:
                log_event(logger, logging.INFO, "disk_well", path=path, on=what)
        await asyncio.sleep(period_s)
