"""Says in the log that a limit of what peers can have is reached, which the native side only counts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from kvstore.common.logs import log_throttled

logger = logging.getLogger(__name__)

PERIOD_S = 1.0

# What to do about each. Connections are told of by watch_refusals; strangers that don't say HELLO are no news.
_REMEDIES = {
    "writing_bytes": "puts are answered NO_SPACE: raise writing_max, or find out who has puts under way and sends no bytes",
    "held_bytes": "gets go over the socket or miss: raise held_max, or find out who reads slowly",
    "pinned_bytes": "pages that engines asked for may go before they are read: raise pinned_fraction_max or session_share_max",
    "registered_bytes": "memory of clients is read in a slower way: raise registered_max, at 2 MiB of page tables a GiB",
    "registered_buffers": "puts go over the socket: raise registered_buffers_max, or let clients use fewer, larger buffers",
    "body_bytes": "requests are answered UNAVAILABLE: raise request_bodies_max, or send smaller batches",
}


async def watch_limits(
    usage: Callable[[], Sequence[tuple[str, int, int, int, int]]], period_s: float = PERIOD_S
) -> None:
    """For ever: looks at what the segment has refused. `usage`: (name, used, limit, limit of one connection, refused) of each
    limit."""
    seen = {name: refused for name, *_, refused in usage()}
    while True:
        await asyncio.sleep(period_s)
        for name, used, limit, session_limit, refused in usage():
            if refused > seen.get(name, 0) and name in _REMEDIES:
                log_throttled(
                    logger,
                    logging.WARNING,
                    "limit_reached",
                    name,
                    limit=name,
                    used=used,
                    most=limit,
                    most_for_one_connection=session_limit,
                    refused=refused - seen.get(name, 0),
                    remedy=_REMEDIES[name],
                )
            seen[name] = refused
