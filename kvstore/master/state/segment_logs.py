"""The durable log of each segment: journal, inventory, compaction. Part of the state machine; does no IO.

Entries reach the index only when their record is durable. A journal is taken in order: what is already there
is skipped, a gap means that the master has missed something and asks for the whole inventory. The inventory
becomes a snapshot that replaces the log before it; so does a compaction, which rewrites a log that has grown
far beyond what is alive in it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from kvstore.master.metadata.store import Put, SpaceLevel
from kvstore.master.state import layout
from kvstore.master.state.changes import (
    CompactionStored,
    InventoryChunkStored,
    InventoryStored,
    JournalStored,
    SegmentChange,
)
from kvstore.master.state.effects import (
    AckJournal,
    CloseSession,
    Commit,
    CompactLog,
    Effect,
    RefuseEntries,
    Report,
    RequestInventory,
    SweepIndex,
)
from kvstore.master.state.events import (
    CompactionFailed,
    CompactionWritten,
    InventoryReceived,
    JournalReceived,
    SpaceMeasured,
)
from kvstore.master.state.journal_entries import StagedRecord, staged_inventory, staged_journal
from kvstore.master.state.layout import Snapshot
from kvstore.master.state.segment_table import CompactionProgress, InventoryProgress, Segment, SegmentTable
from kvstore_client._native import DirectoryIndex
from kvstore_client.protocol import OBJECT_BYTES_MAX, SegmentState, Status, WireError

RECORD_ENTRIES_MAX = 16_384  # at most 36 bytes each (a group of its own): well under the 1 MiB of a commit
INVENTORY_CHUNKS_MAX = 65_536
COMPACTION_RETRY_S = 30.0  # after one that failed, so that a store in trouble is not read again and again
SEQ_MAX = 1 << 62  # beyond what a segment can count to; keys hold 64 bits


@dataclass(frozen=True)
class LogLimits:
    """A log is compacted when it holds compaction_factor times its live entries and compaction_floor entries
    more."""

    compaction_factor: float = 2.0
    compaction_floor_entries: int = 65_536
    # The same while the store is tight.
    tight_compaction_factor: float = 1.1
    tight_compaction_floor_entries: int = 1024


class SegmentLogs:
    def __init__(self, table: SegmentTable, index: DirectoryIndex, limits: LogLimits) -> None:
        self._table = table
        self._index = index
        self._limits = limits
        self.space = SpaceLevel.NORMAL

    # ---- space -----------------------------------------------------------------------------------------------

    def space_measured(self, now: float, event: SpaceMeasured) -> list[Effect]:
        """A tight store has its logs compacted early; a full one takes no journal until there is space again."""
        old, self.space = self.space, event.level
        effects: list[Effect] = []
        if event.level is not old:
            level = logging.INFO if event.level is SpaceLevel.NORMAL else logging.ERROR
            effects.append(Report(f"metadata_space_{event.level.name.lower()}", {"why": event.text}, level))
        for segment in self._table:
            if event.level is not SpaceLevel.FULL and segment.held_back and segment.session is not None:
                text = "the metadata store has space again: attach again"
                effects.append(CloseSession(segment.session, Status.UNAVAILABLE, text))
            if event.level is not SpaceLevel.NORMAL:
                effects += self._maybe_compact(now, segment)
        return effects

    def _hold_back(self, segment: Segment) -> bool:
        """Whether what the segment sends is not taken now. It hears nothing of it, and waits."""
        if self.space is SpaceLevel.FULL:
            segment.held_back = True
            segment.inventory = None
        return segment.held_back

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
        for count, groups, record in staged.records:
            first, last = segment.accepted_seq + 1, segment.accepted_seq + count
            change = JournalStored(segment.segment_id, segment.log, last, count, groups)
            effects.append(Commit((Put(layout.journal_key(segment.segment_id, first), record),), change))
            segment.accepted_seq = last
        assert segment.accepted_seq == event.last_seq
        segment.stream_seq = event.last_seq
        return effects

    def journal_stored(self, now: float, change: JournalStored) -> list[Effect]:
        segment = self.current(change)
        if segment is None:
            return []
        self._index.apply(segment.index, change.groups)
        segment.durable_seq = change.last_seq
        segment.logged_entries += change.entries
        return self._ack(segment) + self._maybe_compact(now, segment)

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
            change = InventoryChunkStored(
                segment.segment_id, segment.log, progress.generation, progress.chunks, count, groups
            )
            effects.append(Commit((Put(key, record),), change))
            progress.chunks += 1
            progress.entries += count
        if event.last:
            segment.awaiting_inventory = False
            segment.inventory = None
            segment.accepted_seq = segment.stream_seq = event.last_seq
            effects.append(
                self._replace_snapshot(
                    segment,
                    progress.generation,
                    event.last_seq,
                    progress.chunks,
                    None,
                    InventoryStored(segment.segment_id, segment.log, progress.generation, event.last_seq),
                )
            )
        return effects

    def _replace_snapshot(
        self,
        segment: Segment,
        generation: int,
        seq: int,
        chunks: int,
        journal_end: int | None,
        change: InventoryStored | CompactionStored,
    ) -> Commit:
        """The record names the new snapshot and the log before it goes, in one commit."""
        segment.record = replace(segment.record, snapshot=Snapshot(generation, seq, chunks))
        ops = (
            Put(layout.segment_key(segment.segment_id), segment.record.encode()),
            layout.journal_before(segment.segment_id, journal_end),
            layout.snapshots_before(segment.segment_id, generation),
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
        if change.chunk == 0:
            segment.logged_entries = 0
        segment.logged_entries += change.entries
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
        segment.damaged = False
        # What it has not named is there until it is swept, so the index doesn't know the number yet.
        done = {
            "segment_id": segment.segment_id,
            "entries": segment.logged_entries,
            "seq": change.last_seq,
        }
        return [SweepIndex(), Report("inventory_stored", done, logging.INFO), *self._ack(segment)]

    # ---- compaction ----------------------------------------------------------------------------------------

    def _maybe_compact(self, now: float, segment: Segment) -> list[Effect]:
        live, _ = self._index.segment_usage(segment.index)
        limits = self._limits
        if self.space is SpaceLevel.NORMAL:
            bound = live * limits.compaction_factor + limits.compaction_floor_entries
        else:
            bound = live * limits.tight_compaction_factor + limits.tight_compaction_floor_entries
        busy = segment.compaction is not None or segment.inventory is not None or segment.awaiting_inventory
        # A damaged log can't be made whole by rewriting it: the inventory will replace it.
        if segment.logged_entries <= bound or busy or segment.damaged or now < segment.compaction_after:
            return []
        segment.compaction = CompactionProgress(segment.next_generation, segment.logged_entries)
        segment.next_generation += 1
        return [
            CompactLog(
                segment.segment_id,
                segment.compaction.generation,
                segment.record.snapshot.generation,
                segment.record.snapshot.chunks,
                segment.durable_seq,
            )
        ]

    def compaction_written(self, event: CompactionWritten) -> list[Effect]:
        segment = self._compacting(event.segment_id, event.generation)
        if segment is None:
            return []
        progress, segment.compaction = segment.compaction, None
        assert progress is not None
        effects: list[Effect] = []
        if event.records_lost:
            lost = {"segment_id": segment.segment_id, "records": event.records_lost}
            effects.append(Report("record_corrupt", lost, logging.ERROR))
            segment.damaged = True
            if segment.session is not None and segment.registered:
                segment.awaiting_inventory = True
                effects.append(RequestInventory(segment.session))
            return effects
        change = CompactionStored(
            segment.segment_id, segment.log, event.generation, event.entries, progress.logged_entries
        )
        return [
            self._replace_snapshot(
                segment, event.generation, event.through_seq, event.chunks, event.through_seq + 1, change
            )
        ]

    def compaction_failed(self, now: float, event: CompactionFailed) -> list[Effect]:
        segment = self._compacting(event.segment_id, event.generation)
        if segment is not None:
            segment.compaction = None
            segment.compaction_after = now + COMPACTION_RETRY_S
        return []

    def _compacting(self, segment_id: bytes, generation: int) -> Segment | None:
        """The segment, if it still waits for this compaction."""
        segment = self._table.get(segment_id)
        if segment is None or segment.compaction is None or segment.compaction.generation != generation:
            return None
        return segment

    def compaction_stored(self, change: CompactionStored) -> list[Effect]:
        segment = self.current(change)
        if segment is None or segment.record.snapshot.generation != change.generation:
            return []
        segment.durable_snapshot = segment.record.snapshot
        before = segment.logged_entries
        # What was journalled while the snapshot was being written is still in the log.
        segment.logged_entries = change.entries + before - change.entries_before
        done = {"segment_id": segment.segment_id, "before": before, "after": segment.logged_entries}
        return [Report("log_compacted", done, logging.INFO)]

    # ---- failure -------------------------------------------------------------------------------------------

    def store_failed(self, change: SegmentChange) -> list[Effect]:
        """A write of this segment's log has an unknown outcome: start again from what is known to be
        durable."""
        segment = self.current(change)
        if segment is None:
            return []
        segment.accepted_seq = segment.durable_seq
        segment.compaction = None
        if isinstance(change, InventoryChunkStored | InventoryStored | CompactionStored):
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
