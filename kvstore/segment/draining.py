"""A segment that is about to end has its pages moved to others: it asks its master, again and again, until that is done or there is no
use in waiting. What is drained and how is the master's business."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

ASK_S = 0.25
# A master that leads anew or is of an earlier release says nothing; nor does one that can't be reached.
UNANSWERED_S = 15.0
_ENDS = {3: "drained", 4: "no room", 5: "no target"}


class DrainableSession(Protocol):
    """The part of AttachSession that is used."""

    drain_told: Any

    async def ask_drain(self) -> None: ...


async def drained(
    session_of_now: Callable[[], DrainableSession | None], timeout_s: float, give_up: asyncio.Event
) -> str:
    """Why it ended: drained, no room, no target, timeout, given up, unanswered."""
    ends_at = time.monotonic() + timeout_s
    answered_at = time.monotonic()
    while True:
        session = session_of_now()
        if session is not None:
            told, session.drain_told = session.drain_told, None
            if told is not None:
                answered_at = time.monotonic()
                if told.phase in _ENDS:
                    return _ENDS[told.phase]
            await session.ask_drain()
        now = time.monotonic()
        if now >= ends_at:
            return "timeout"
        if now - answered_at >= UNANSWERED_S:
            return "unanswered"
        try:
            await asyncio.wait_for(give_up.wait(), min(ASK_S, ends_at - now))
        except asyncio.TimeoutError:
            continue
        return "given up"
