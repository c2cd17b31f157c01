"""The durable log of each segment: journal and inventory. Part of the state machine; does no IO.

Entries reach the index only when their record is durable. A journal is taken in order: what is already there
is skipped, a gap means that the master has missed something and asks for the whole inventory. The inventory
becomes a snapshot that replaces the log before it. A log that has grown far beyond what is alive in it is
rewritten in place (`log_compaction`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from kvstore.master.metadata.store import Op, Put, SpaceLevel
from kvstore.master.state import layout
from kvstore.master.state.changes import (
    InventoryChunkStored,
    InventoryStored,
    JournalStored,
    LogRewriteStored,
    SegmentChange,
)
from kvstore.master.state.effects import (
    AckJournal,
    CloseSession,
    Commit,
    Effect,
    MeasureSpace,
    RefuseEntries,
    Report,
    RequestInventory,
    SweepIndex,
)
from kvstore.master.state.events import (
    InventoryReceived,
    JournalReceived,
    LogRewritten,
    SpaceMeasured,
)
from kvstore.master.state.journal_entries import StagedRecord, staged_inventory, staged_journal
from kvstore.master.state.layout import SEQ_MAX, Snapshot
from kvstore.master.state.log_compaction import LogCompaction, LogLimits
from kvstore.master.state.log_rewrite import RECORD_ENTRIES_MAX
from kvstore.master.state.segment_table import InventoryProgress, Segment, SegmentTable
from kvstore.master.state.store_space import StoreSpace
from kvstore_client._native import DirectoryIndex
from kvstore_client.protocol import OBJECT_BYTES_MAX, SegmentState, Status, WireError

INVENTORY_CHUNKS_MAX = 65_536


class SegmentLogs:
    def __init__(self, table: SegmentTable, index: DirectoryIndex, limits: LogLimits) -> None:
        self._table = table
        self._index = index
        self.space = StoreSpace()
        self.compaction = LogCompaction(table, index, limits, self.space)

    # ---- space -----------------------------------------------------------------------------------------------

    def space_measured(self, now: float, event: SpaceMeasured) -> list[Effect]:
        """A tight store has its logs compacted early; a full one takes no journal until there is space again."""
        old = self.space.level
        self.space.measured(event)
        effects: list[Effect] = []
        if event.level is not old:
            level = logging.INFO if event.level is SpaceLevel.NORMAL else logging.ERROR
            effects.append(Report(f"metadata_space_{event.level.name.lower()}", {"why": event.text}, level))
        for segment in self._table:
            if self.space.takes_journal and segment.held_back and segment.session is not None:
                text = "the metadata store has space again: attach again"
                effects.append(CloseSession(segment.session, Status.UNAVAILABLE, text))
        return effects + self.compaction.begin_next(now)

    def _hold_back(self, segment: Segment) -> bool:
        """Whether what the segment sends is not taken now. It hears nothing of it, and waits."""
        if not self.space.takes_journal:
            segment.held_back = True
            segment.inventory = None
        return segment.held_back

    def _write(self, commits: Sequence[Commit]) -> list[Effect]:
        """Counts them against the room that there is."""
        due = [self.space.wrote(commit.ops) for commit in commits]
        return [*commits, *([MeasureSpace()] if any(due) else [])]

    # ---- journal -------------------------------------------------------------------------------------------

    def journal(self, event: JournalReceived) -> list[Effect]:
        segment = self._sender(event.session)
        if segment is None:
            return []
        if not segment.registered:
            return self._refuse(segment, "a journal batch came before the registration was answered")
        if self._hold_back(segment):
            return []
        if segment.awaiting_inventory or segment.inventory is not None:
            return []  # the inventory stands for it
        counts = 1 <= event.first_seq <= SEQ_MAX
        try:
            first_seq = event.first_seq if counts else 1
            staged = staged_journal(event.groups, first_seq, segment.accepted_seq, RECORD_ENTRIES_MAX)
        except WireError as error:
            return self._refuse(segment, f"malformed journal batch: {error}")
        entries = staged.entries
        if entries == 0 or not counts or event.last_seq - event.first_seq + 1 != entries:
            return self._refuse(
                segment,
                f"journal batch counts from {event.first_seq} to {event.last_seq} but has {entries} entries",
            )
        if event.last_seq <= segment.accepted_seq:
            # Sent before; the acknowledgement may have been lost with an older stream.
            segment.stream_seq = max(segment.stream_seq, event.last_seq)
            return self._ack(segment)
        if event.first_seq > segment.accepted_seq + 1:
            segment.awaiting_inventory = True
            gap = {
                "segment_id": segment.segment_id,
                "expected": segment.accepted_seq + 1,
                "got": event.first_seq,
            }
            return [RequestInventory(event.session), Report("journal_gap", gap)]
        effects = self._refuse_entries(segment, event.last_seq, staged.refused)
        commits = []
        for count, groups, record in staged.records:
            first, last = segment.accepted_seq + 1, segment.accepted_seq + count
            change = JournalStored(segment.segment_id, segment.log, last, count, groups)
            commits.append(Commit((Put(layout.journal_key(segment.segment_id, first), record),), change))
            segment.accepted_seq = last
        assert segment.accepted_seq == event.last_seq
        segment.stream_seq = event.last_seq
        return effects + self._write(commits)

    def journal_stored(self, now: float, change: JournalStored) -> list[Effect]:
        segment = self.current(change)
        if segment is None:
            return []
        self._index.apply(segment.index, change.groups)
        segment.durable_seq = change.last_seq
        segment.logged_entries += change.entries
        return self._ack(segment) + self.compaction.consider(now, segment)

    # ---- inventory -----------------------------------------------------------------------------------------

    def inventory(self, event: InventoryReceived) -> list[Effect]:
        segment = self._sender(event.session)
        if segment is None:
            return []
        if not segment.registered:
            return self._refuse(segment, "an inventory came before the registration was answered")
        if self._hold_back(segment):
            return []
        if event.first:
            segment.inventory = InventoryProgress(segment.next_generation, event.last_seq)
            segment.next_generation += 1
            segment.compaction = None  # one that is being written would bring the past back
        progress = segment.inventory
        if progress is None or progress.last_seq != event.last_seq:
            return self._refuse(segment, "an inventory chunk came out of order")
        if not 0 <= event.last_seq <= SEQ_MAX:
            return self._refuse(segment, f"malformed inventory chunk: it stands for entry {event.last_seq}")
        try:
            staged = staged_inventory(event.groups, event.last_seq, RECORD_ENTRIES_MAX)
        except WireError as error:
            return self._refuse(segment, f"malformed inventory chunk: {error}")
        if staged.has_removes:
            return self._refuse(segment, "malformed inventory chunk: an inventory has no REMOVE")
        if progress.chunks + len(staged.records) > INVENTORY_CHUNKS_MAX:
            return self._refuse(
                segment, f"an inventory has at most {INVENTORY_CHUNKS_MAX} chunks: send larger ones"
            )
        records = staged.records
        if event.first and not records:
            records = [StagedRecord.empty_snapshot(event.last_seq)]  # also an empty one begins in the index
        effects = self._refuse_entries(segment, event.last_seq, staged.refused)
        for count, groups, record in records:
            key = layout.snapshot_key(segment.segment_id, progress.generation, progress.chunks)
            ops: tuple[Op, ...] = (Put(key, record),)
            if progress.chunks == 0:
                # What earlier ones have left that broke off: a segment whose link breaks again and again must not fill the store.
                current = segment.record.snapshot.generation
                ops += (layout.snapshots_between(segment.segment_id, current, progress.generation),)
            change = InventoryChunkStored(
                segment.segment_id, segment.log, progress.generation, progress.chunks, groups
            )
            effects += self._write([Commit(ops, change)])
            progress.chunks += 1
            progress.entries += count
        if event.last:
            segment.awaiting_inventory = False
            segment.inventory = None
            segment.accepted_seq = segment.stream_seq = event.last_seq
            effects.append(self._replace_log(segment, progress))
        return effects

    def _replace_log(self, segment: Segment, progress: InventoryProgress) -> Commit:
        """The record names the new snapshot and the log before it goes, in one commit."""
        snapshot = Snapshot(progress.generation, progress.last_seq, progress.chunks)
        segment.record = replace(segment.record, snapshot=snapshot)
        ops = (
            Put(layout.segment_key(segment.segment_id), segment.record.encode()),
            layout.journal_before(segment.segment_id, None),
            layout.snapshots_before(segment.segment_id, progress.generation),
        )
        change = InventoryStored(
            segment.segment_id, segment.log, progress.generation, progress.last_seq, progress.entries
        )
        return Commit(ops, change)

    def inventory_chunk_stored(self, change: InventoryChunkStored) -> list[Effect]:
        segment = self.current(change)
        # A generation that is neither coming in nor current belongs to an inventory that was given up.
        if segment is None or not self._generation_counts(segment, change.generation):
            return []
        if change.chunk == 0:
            self._index.begin_inventory(segment.index)
        self._index.apply(segment.index, change.groups)
        return []

    @staticmethod
    def _generation_counts(segment: Segment, generation: int) -> bool:
        coming = segment.inventory is not None and segment.inventory.generation == generation
        return coming or segment.record.snapshot.generation == generation

    def inventory_stored(self, change: InventoryStored) -> list[Effect]:
        segment = self.current(change)
        if segment is None or segment.record.snapshot.generation != change.generation:
            return []
        self._index.end_inventory(segment.index)
        segment.durable_snapshot = segment.record.snapshot
        segment.durable_seq = change.last_seq
        segment.logged_entries = change.entries
        segment.damaged = False
        # What it has not named is there until it is swept, so the index doesn't know the number yet.
        done = {
            "segment_id": segment.segment_id,
            "entries": segment.logged_entries,
            "seq": change.last_seq,
        }
        return [SweepIndex(), Report("inventory_stored", done, logging.INFO), *self._ack(segment)]

    # ---- compaction ----------------------------------------------------------------------------------------

    def log_rewritten(self, event: LogRewritten) -> list[Effect]:
        return self._write(self.compaction.rewritten(event))

    # ---- failure -------------------------------------------------------------------------------------------

    def store_failed(self, now: float, change: SegmentChange) -> list[Effect]:
        """A write of this segment's log has an unknown outcome: start again from what is known to be
        durable."""
        segment = self.current(change)
        if segment is None:
            return []
        if isinstance(change, LogRewriteStored):
            return self.compaction.store_failed(now, change, segment)
        segment.accepted_seq = segment.durable_seq
        if isinstance(change, InventoryChunkStored | InventoryStored):
            segment.damaged = True
            # Whatever is stored of the segment from now on must not name a snapshot that may not be there.
            segment.record = replace(segment.record, snapshot=segment.durable_snapshot)
        if segment.session is None:
            return []
        session = segment.session
        return [CloseSession(session, Status.UNAVAILABLE, "the directory could not be written: attach again")]

    # ---- common --------------------------------------------------------------------------------------------

    def current(self, change: SegmentChange) -> Segment | None:
        segment = self._table.get(change.segment_id)
        return segment if segment is not None and segment.log == change.log else None

    def _sender(self, session: int) -> Segment | None:
        segment = self._table.of_session(session)
        return segment if segment is not None and segment.state is not SegmentState.GONE else None

    @staticmethod
    def _ack(segment: Segment) -> list[Effect]:
        """What is durable of what this stream has told: of another one's entries it has heard nothing yet."""
        seq = min(segment.durable_seq, segment.stream_seq)
        if segment.session is None or not segment.registered or not seq:
            return []
        return [AckJournal(segment.session, seq)]

    @staticmethod
    def _refuse_entries(segment: Segment, last_seq: int, refused: int) -> list[Effect]:
        """Tells the sender, and us, of entries that were left out of a message."""
        if not refused:
            return []
        assert segment.session is not None
        reason = f"an object has at most {OBJECT_BYTES_MAX} bytes"
        told = {"segment_id": segment.segment_id, "entries": refused, "last_seq": last_seq, "reason": reason}
        return [
            RefuseEntries(segment.session, last_seq, refused, reason),
            Report("entries_refused", told, logging.ERROR),
        ]

    @staticmethod
    def _refuse(segment: Segment, reason: str) -> list[Effect]:
        assert segment.session is not None
        return [
            CloseSession(segment.session, Status.BAD_REQUEST, reason),
            Report("journal_malformed", {"segment_id": segment.segment_id, "reason": reason}, logging.ERROR),
        ]
