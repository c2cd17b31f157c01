"""Rewrites the log of one segment in place, record by record: the work of a compaction, without IO.

Records are taken in the order of the log, from the first one to entry `through_seq`. Each step replaces a run of
neighbouring records by one that holds what is alive of them, and deletes them, in one commit. So at every moment,
and after a crash at any point, the log says what it said before: what an object's record still adds, some later
record removes, or the segment has it now. A step never writes more than it deletes, and the journal goes on
meanwhile, for it only ever adds records after `through_seq`.

What is alive the directory's own index knows (LiveEntries); nothing else is kept in memory but one run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvstore.common.errors import CorruptRecordError
from kvstore.master.metadata.store import DeleteRange, Op, Put
from kvstore.master.state import layout
from kvstore.master.state.effects import CompactLog
from kvstore.master.state.journal_entries import staged_inventory
from kvstore.master.state.layout import LogKey
from kvstore.master.state.records import Record, RecordKind, decode_journal
from kvstore_client._native import DirectoryIndex, LiveEntries
from kvstore_client._native import WireError as RefusedByIndex
from kvstore_client.protocol import ENTRIES_MAX
from kvstore_client.protocol.journal import count_entries

RECORD_ENTRIES_MAX = 16_384  # at most 36 bytes each (a group of its own): well under the 1 MiB of a commit
# What one step replaces: a store deletes so much at once without holding up others, or growing.
RUN_RECORDS_MAX = 1024
RUN_BYTES_MAX = 512 << 10


@dataclass(frozen=True, slots=True)
class RewriteStep:
    """Operations of one commit. Steps are to be committed in order; one that is not ends the rewriting."""

    ops: tuple[Op, ...]
    entries_before: int
    entries_after: int


@dataclass(slots=True)
class _Run:
    """Neighbouring journal records that become one."""

    first_seq: int
    last_seq: int
    records: int = 0
    size_bytes: int = 0
    entries_before: int = 0
    entries: int = 0
    only: bytes | None = None  # the record itself, while it is one that was rewritten before


class LogRewrite:
    def __init__(self, order: CompactLog, index: DirectoryIndex) -> None:
        self._order = order
        self._live = LiveEntries(index, order.segment_index)
        self._next_seq = order.snapshot.seq + 1
        self._chunks = 0
        self._run: _Run | None = None
        self.damaged = False  # a record was lost: only an inventory can make the log whole

    def feed(self, page: list[tuple[bytes, bytes]]) -> Iterator[RewriteStep]:
        """Records in the order of their keys. Nothing comes any more once one was found damaged."""
        for key, value in page:
            if self.damaged:
                return
            try:
                at = layout.parse_log_key(key)
                if at.first_seq is None:
                    yield from self._chunk(at, key, value)
                elif at.first_seq <= self._order.through_seq:
                    yield from self._journal(at.first_seq, value)
            except (CorruptRecordError, ValueError):
                self.damaged = True

    def finish(self) -> Iterator[RewriteStep]:
        """After the last page."""
        missing = self._chunks != self._order.snapshot.chunks or self._next_seq != self._order.through_seq + 1
        self.damaged = self.damaged or missing
        if not self.damaged:
            yield from self._flush()

    def _chunk(self, at: LogKey, key: bytes, value: bytes) -> Iterator[RewriteStep]:
        snapshot = self._order.snapshot
        if at.generation != snapshot.generation or at.chunk >= snapshot.chunks:
            return  # of an inventory that was never finished
        self._chunks += 1
        record = Record.decode(value, RecordKind.SNAPSHOT)
        kept = self._keep(record.body)
        body = self._live.take()
        if body != record.body:
            rewritten = Record(RecordKind.SNAPSHOT, record.first_seq, record.last_seq, body).encode()
            yield RewriteStep((Put(key, rewritten),), count_entries(record.body), kept)

    def _journal(self, first_seq: int, value: bytes) -> Iterator[RewriteStep]:
        record = decode_journal(value, first_seq)
        if record.first_seq != self._next_seq:
            raise CorruptRecordError(f"the record of entry {self._next_seq} is missing")
        entries = count_entries(record.body)
        run = self._run
        if run is not None and (
            run.entries + entries > RECORD_ENTRIES_MAX
            or run.records == RUN_RECORDS_MAX
            or run.size_bytes + len(value) > RUN_BYTES_MAX
        ):
            yield from self._flush()
            run = None
        if run is None:
            run = self._run = _Run(record.first_seq, record.last_seq)
        run.only = record.body if record.kind is RecordKind.SNAPSHOT and not run.records else None
        kept = self._keep(record.body)
        run.last_seq = record.last_seq
        run.records += 1
        run.size_bytes += len(value)
        run.entries_before += entries
        run.entries += kept
        self._next_seq = record.last_seq + 1

    def _flush(self) -> Iterator[RewriteStep]:
        run, self._run = self._run, None
        if run is None:
            return
        body = self._live.take()
        if run.only == body:
            return  # nothing of it is dead, and it has no neighbour that it could be joined with
        segment_id = self._order.segment_id
        record = Record(RecordKind.SNAPSHOT, run.first_seq, run.last_seq, body).encode()
        ops: tuple[Op, ...] = (Put(layout.journal_key(segment_id, run.first_seq), record),)
        if run.records > 1:
            ops += (
                DeleteRange(
                    layout.journal_key(segment_id, run.first_seq + 1),
                    layout.journal_key(segment_id, run.last_seq + 1),
                ),
            )
        yield RewriteStep(ops, run.entries_before, run.entries)

    def _keep(self, groups: bytes) -> int:
        try:
            return self._live.keep(groups)
        except RefusedByIndex:  # the index has left out what it refuses
            return sum(
                self._live.keep(clean) for _, clean, _ in staged_inventory(groups, 0, ENTRIES_MAX).records
            )
