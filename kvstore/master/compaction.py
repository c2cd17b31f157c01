"""Does what the state machine has ordered of a log: reads it and tells of each step of its rewriting.

It goes on only while the compaction is wanted, the backlog of commits is within its bound, and the store has room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from kvstore.master.committer import Committer
from kvstore.master.metadata.store import MetadataStore
from kvstore.master.state import layout
from kvstore.master.state.directory_state import DirectoryState
from kvstore.master.state.effects import CompactLog
from kvstore.master.state.events import CompactionEnded, Event, LogRewritten
from kvstore.master.state.log_rewrite import LogRewrite, RewriteStep

ROOM_POLL_S = 0.1


class Compactor:
    """`handle` takes events for the state machine. Event loop only."""

    def __init__(
        self,
        store: MetadataStore,
        state: DirectoryState,
        committer: Committer,
        handle: Callable[[Event], None],
    ) -> None:
        self._store = store
        self._state = state
        self._committer = committer
        self._handle = handle
        self._storing: dict[tuple[bytes, int], asyncio.Event] = {}

    async def compact(self, order: CompactLog) -> CompactionEnded:
        """Raises StoreError. What was told before it failed stands by itself."""
        rewrite = LogRewrite(order, self._state.index)
        ended = CompactionEnded(order.segment_id, order.run)
        async for page in self._store.scan(layout.log_prefix(order.segment_id)):
            # In a thread: a page has tens of thousands of entries.
            if not await self._tell(order, await asyncio.to_thread(_all, rewrite.feed(page))):
                return ended
        await self._tell(order, await asyncio.to_thread(_all, rewrite.finish()))
        return CompactionEnded(order.segment_id, order.run, rewrite.damaged)

    def step_stored(self, segment_id: bytes, run: int) -> None:
        if (waiting := self._storing.pop((segment_id, run), None)) is not None:
            waiting.set()

    async def _tell(self, order: CompactLog, steps: Iterable[RewriteStep]) -> bool:
        """Whether to go on."""
        for step in steps:
            if not await self._room(order):
                return False
            stored = self._storing[order.segment_id, order.run] = asyncio.Event()
            self._handle(
                LogRewritten(order.segment_id, order.run, step.ops, step.entries_before, step.entries_after)
            )
            # One by one, so that no commit holds many, and the store is never far behind.
            await stored.wait()
        return self._is_wanted(order)

    async def _room(self, order: CompactLog) -> bool:
        """Waits until there is room for a step. False: it is wanted no more."""
        await self._committer.wait_for_room()
        while self._is_wanted(order):
            if self._state.logs.space.takes_upkeep:
                return True
            await asyncio.sleep(ROOM_POLL_S)
        return False

    def _is_wanted(self, order: CompactLog) -> bool:
        return self._state.logs.compaction.is_wanted(order.segment_id, order.run)


def _all(steps: Iterable[RewriteStep]) -> list[RewriteStep]:
    return list(steps)
