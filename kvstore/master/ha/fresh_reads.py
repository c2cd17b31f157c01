"""Makes what a standby does not find as true as if the leader had not found it.

A standby follows the store and is a little behind it. What it finds may be gone, which segments tell; what it does not find may
have been acknowledged a moment ago, which nobody else would tell. So before it says that something is missing it asks the store
for its newest commit, and waits until it has applied that: everything that was acknowledged before the question is in it. (The
read index of Raft, D. Ongaro's thesis, section 6.4.)

Questions are shared: one is on its way at a time, and all who come meanwhile share the next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from kvstore.common.logs import log_throttled
from kvstore.master.metrics import MasterMetrics

logger = logging.getLogger(__name__)

# Longer than a healthy store takes by far, and well within the deadlines of clients.
CAUGHT_UP_WITHIN_S = 0.25
# After a question that took longer: until then a standby answers with what it has.
SILENT_S = 1.0


class FreshReads:
    """`newest_commit`: the revision of the store's newest commit, from a read that sees all acknowledged ones; StoreError.
    `applied(revision)`: returns when the directory has everything up to it. Event loop only."""

    def __init__(
        self,
        newest_commit: Callable[[], Awaitable[int]],
        applied: Callable[[int], Awaitable[None]],
        metrics: MasterMetrics,
    ) -> None:
        self._newest_commit = newest_commit
        self._applied = applied
        self._metrics = metrics
        self._asking: asyncio.Task[bool] | None = None
        self._next: asyncio.Task[bool] | None = None
        self._silent_until = float("-inf")

    @property
    def worth_asking(self) -> bool:
        """False for a while after the store did not answer in time: reads must not wait for it."""
        return time.monotonic() >= self._silent_until

    async def caught_up(self) -> bool:
        """Returns when everything that was committed before the call is applied; False when that takes too long. Never raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._ask_after(self._asking), name="fresh-reads")
        question = self._next
        await asyncio.wait({question})  # of all that wait, nobody's end is the question's
        return not question.cancelled() and question.result()

    def close(self) -> None:
        """Whoever still waits is answered with what there is."""
        for task in (self._asking, self._next):
            if task is not None:
                task.cancel()

    async def _ask_after(self, before: asyncio.Task[bool] | None) -> bool:
        try:
            if before is not None:
                await asyncio.wait({before})
            # Who comes from now on may know of a commit that this question does not see.
            self._asking, self._next = self._next, None
            if not self.worth_asking:
                return False
            await asyncio.wait_for(self._ask(), CAUGHT_UP_WITHIN_S)
        except Exception as error:  # a bug too: no read may hang on it
            self._silent_until = time.monotonic() + SILENT_S
            self._metrics.unconfirmed_misses.inc()
            why = str(error) or f"not caught up within {CAUGHT_UP_WITHIN_S:g} s"
            log_throttled(logger, logging.WARNING, "misses_unconfirmed", "", why=why)
            return False
        return True

    async def _ask(self) -> None:
        await self._applied(await self._newest_commit())
