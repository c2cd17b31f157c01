"""Says in the log that clients are refused, which the native data port only counts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kvstore.common.logs import log_throttled

logger = logging.getLogger(__name__)

PERIOD_S = 1.0


async def watch_refusals(
    stats: Callable[[], dict[str, int]], connections_max: int, period_s: float = PERIOD_S
) -> None:
    """For ever: looks at what the data port has counted."""
    seen = stats()["refused_connections"]
    while True:
        await asyncio.sleep(period_s)
        counted = stats()["refused_connections"]
        if counted > seen:
            log_throttled(
                logger,
                logging.WARNING,
                "connections_refused",
                "",
                refused=counted - seen,
                connections_max=connections_max,
                remedy="raise connections_max, and the limit of open files with it; or find out who opens so many",
            )
        seen = counted
