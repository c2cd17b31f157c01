"""How a standby read a log again once."""

from __future__ import annotations

from contextlib import AbstractContextManager

from kvstore.master.ha.follower import Follower
from kvstore.master.index_sweeper import sweep
from kvstore.master.metadata.replicated import Update
from kvstore.master.recovery import reload_segment
from kvstore.master.state import layout
from kvstore.master.state.replay import Replay, SegmentLog
from simulation.mistakes import replaced


def a_reload_is_tried_once() -> AbstractContextManager[None]:
    """The log's pages go as its reading begins, at the moment of the change; when that can't be read, nobody tries again, and the
    change, which is followed once more, is known by then."""

    async def apply(self: Follower, update: Update) -> None:
        registry_changed = namespaces_changed = False
        async with self._changing:
            for change in update.changes:
                registry_changed |= change.key.startswith(layout.SEGMENTS_PREFIX)
                namespaces_changed |= change.key.startswith(layout.NAMESPACES_PREFIX)
                self.replay.follow(change)
            while self.replay.to_reload:
                segment_id, _ = self.replay.to_reload.popitem()
                await reload_segment(self.replay, self._store.at(update.revision), segment_id)
        self.revision = update.revision
        if registry_changed:
            self.standby.records_changed(update.revision)
        self._on_applied(update.revision, namespaces_changed)
        self._has_advanced()
        if registry_changed:
            await sweep(self.replay.index)

    right = Replay.begin_reload

    def begin_reload(self: Replay, segment_id: bytes, record: bytes | None) -> SegmentLog | None:
        fresh = right(self, segment_id, record)
        if fresh is not None:
            self.logs[segment_id] = fresh
        return fresh

    return replaced((Follower, "_apply", apply), (Replay, "begin_reload", begin_reload))
