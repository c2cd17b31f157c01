"""When logs are rewritten, and which: a few at a time, the one with the most dead entries first. Part of the state machine;
does no IO. The rewriting itself is `log_rewrite`."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from kvstore.master.metadata.store import SpaceLevel
from kvstore.master.state.changes import LogRewriteStored
from kvstore.master.state.effects import (
    Commit,
    CompactionStepStored,
    CompactLog,
    Effect,
    Report,
    RequestInventory,
)
from kvstore.master.state.events import CompactionEnded, CompactionFailed, LogRewritten
from kvstore.master.state.segment_table import CompactionProgress, Segment, SegmentTable
from kvstore.master.state.store_space import StoreSpace
from kvstore_client._native import DirectoryIndex
from kvstore_client.protocol import SegmentState

# At a time: each adds to what the store has to keep for a while of its past.
COMPACTIONS_MAX = 2
# After one that failed, doubling, so that a store in trouble is not read again and again.
COMPACTION_RETRY_S_MIN = 15.0
COMPACTION_RETRY_S_MAX = 600.0


@dataclass(frozen=True)
class LogLimits:
    """A log is compacted when it holds compaction_factor times its live entries and compaction_floor entries
    more."""

    compaction_factor: float = 2.0
    compaction_floor_entries: int = 65_536
    # The same while the store is tight, and while it is full.
    tight_compaction_factor: float = 1.5
    tight_compaction_floor_entries: int = 1024
    full_compaction_factor: float = 1.1


class LogCompaction:
    def __init__(
        self, table: SegmentTable, index: DirectoryIndex, limits: LogLimits, space: StoreSpace
    ) -> None:
        self._table = table
        self._index = index
        self._limits = limits
        self._space = space
        self._runs = 0
        self._running: set[tuple[bytes, int]] = set()  # void ones too, until whoever does them has noticed

    def consider(self, now: float, segment: Segment) -> list[Effect]:
        """Its log has grown."""
        if len(self._running) >= COMPACTIONS_MAX or not self._is_due(now, segment, self._dead(segment)):
            return []
        return [self._begin(segment)]

    def begin_next(self, now: float) -> list[Effect]:
        """As many as may run. To be called now and then, and when one has ended."""
        effects: list[Effect] = []
        while len(self._running) < COMPACTIONS_MAX:
            dead = [(self._dead(segment), segment) for segment in self._table]
            due = [(count, s) for count, s in dead if self._is_due(now, s, count)]
            if not due:
                break
            effects.append(self._begin(max(due, key=lambda each: each[0])[1]))
        return effects

    def is_wanted(self, segment_id: bytes, run: int) -> bool:
        """Whether whoever does it is to go on."""
        return self._current(segment_id, run) is not None

    def rewritten(self, event: LogRewritten) -> list[Commit]:
        segment = self._current(event.segment_id, event.run)
        if segment is None:
            return []
        assert segment.compaction is not None
        segment.compaction.commits_pending += 1
        change = LogRewriteStored(
            segment.segment_id, segment.log, event.run, event.entries_before, event.entries_after
        )
        return [Commit(event.ops, change)]

    def stored(self, change: LogRewriteStored, segment: Segment | None) -> list[Effect]:
        """`segment`: if its log is still the same."""
        if segment is not None:
            # What it took the place of is not there any more, whether the compaction goes on or not.
            segment.logged_entries -= change.entries_before - change.entries_after
        stored = CompactionStepStored(change.segment_id, change.run)
        if self._current(change.segment_id, change.run) is None:
            return [stored]
        assert segment is not None and segment.compaction is not None
        segment.compaction.commits_pending -= 1
        return [stored, *self._finish(segment)]

    def store_failed(self, now: float, change: LogRewriteStored, segment: Segment) -> list[Effect]:
        """The log says the same, whether the step was stored or not."""
        self.abandon(now, segment)
        return [CompactionStepStored(change.segment_id, change.run)]

    def ended(self, now: float, event: CompactionEnded) -> list[Effect]:
        segment = self._current(event.segment_id, event.run)
        effects: list[Effect] = []
        if segment is not None and event.damaged:
            segment.compaction = None
            segment.damaged = True
            effects.append(Report("record_corrupt", {"segment_id": segment.segment_id}, logging.ERROR))
            if segment.session is not None and segment.registered:
                segment.awaiting_inventory = True
                effects.append(RequestInventory(segment.session))
        elif segment is not None:
            assert segment.compaction is not None
            segment.compaction.ended = True
            effects += self._finish(segment)
        return effects + self._let_go(now, event.segment_id, event.run)

    def failed(self, now: float, event: CompactionFailed) -> list[Effect]:
        segment = self._current(event.segment_id, event.run)
        if segment is not None:
            self.abandon(now, segment)
        return self._let_go(now, event.segment_id, event.run)

    @staticmethod
    def abandon(now: float, segment: Segment) -> None:
        """It has failed. What was rewritten stays so; the rest is tried again later."""
        segment.compaction = None
        delay_s = COMPACTION_RETRY_S_MIN * 2.0 ** min(segment.compaction_failures, 16)
        segment.compaction_after = now + min(delay_s, COMPACTION_RETRY_S_MAX)
        segment.compaction_failures += 1

    # ---- common --------------------------------------------------------------------------------------------

    def _dead(self, segment: Segment) -> int:
        """Entries more than it may have; not positive: it is short enough."""
        live, _ = self._index.segment_usage(segment.index)
        limits = self._limits
        if self._space.level is SpaceLevel.NORMAL:
            bound = live * limits.compaction_factor + limits.compaction_floor_entries
        elif self._space.level is SpaceLevel.TIGHT:
            bound = live * limits.tight_compaction_factor + limits.tight_compaction_floor_entries
        else:
            bound = live * limits.full_compaction_factor + limits.tight_compaction_floor_entries
        return segment.logged_entries - int(bound)

    def _is_due(self, now: float, segment: Segment, dead: int) -> bool:
        inventory = segment.inventory is not None or segment.awaiting_inventory
        # A snapshot that is on its way will have replaced the log of now.
        inventory = inventory or segment.record.snapshot != segment.durable_snapshot
        # A damaged log can't be made whole by rewriting it: the inventory will replace it.
        return (
            dead > 0
            and not inventory
            and segment.compaction is None
            and not segment.damaged
            and segment.state is not SegmentState.GONE
            and now >= segment.compaction_after
            and self._space.takes_upkeep
        )

    def _begin(self, segment: Segment) -> CompactLog:
        self._runs += 1
        segment.compaction = CompactionProgress(self._runs, segment.logged_entries)
        self._running.add((segment.segment_id, self._runs))
        return CompactLog(
            segment.segment_id, self._runs, segment.index, segment.durable_snapshot, segment.durable_seq
        )

    def _current(self, segment_id: bytes, run: int) -> Segment | None:
        """The segment, if its log is still to be rewritten by this run."""
        segment = self._table.get(segment_id)
        if segment is None or segment.compaction is None or segment.compaction.run != run:
            return None
        return segment

    @staticmethod
    def _finish(segment: Segment) -> list[Effect]:
        progress = segment.compaction
        assert progress is not None
        if not progress.ended or progress.commits_pending:
            return []
        segment.compaction = None
        segment.compaction_failures = 0
        done = {
            "segment_id": segment.segment_id,
            "before": progress.logged_entries,
            "after": segment.logged_entries,
        }
        return [Report("log_compacted", done, logging.INFO)]

    def _let_go(self, now: float, segment_id: bytes, run: int) -> list[Effect]:
        self._running.discard((segment_id, run))
        return self.begin_next(now)
