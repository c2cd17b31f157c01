"""How logs were compacted once, put back: as a whole new snapshot, which is written beside the log and then takes its place.

The compactor below is the old one on the interfaces of today's: it reads the log into an index of its own, writes what that holds as the
chunks of a new generation, a commit each, and only then has the record name them and the log before them go. By itself it loses
nothing, if it is as bounded and as guarded as today's; what has to be found is each time one thing more.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from dataclasses import replace

from kvstore.common.errors import CorruptRecordError
from kvstore.master.compaction import Compactor
from kvstore.master.metadata.etcd_upkeep import EtcdUpkeep
from kvstore.master.metadata.store import Put, SpaceLevel
from kvstore.master.state import layout, log_compaction, segment_logs
from kvstore.master.state.effects import CompactLog
from kvstore.master.state.events import CompactionEnded
from kvstore.master.state.journal_entries import apply_entries
from kvstore.master.state.layout import Snapshot
from kvstore.master.state.log_compaction import LogCompaction
from kvstore.master.state.records import Record, RecordKind, decode_journal
from kvstore.master.state.segment_table import Segment
from kvstore.master.state.store_space import StoreSpace
from kvstore_client._native import DirectoryIndex
from simulation.mistakes import Replacement, replaced


async def _compact_whole(self: Compactor, order: CompactLog) -> CompactionEnded:
    segment = self._state.segments.get(order.segment_id)
    if segment is None or segment.compaction is None or segment.compaction.run != order.run:
        return CompactionEnded(order.segment_id, order.run)
    entries_before = segment.compaction.logged_entries
    generation = segment.next_generation
    segment.next_generation += 1
    content = DirectoryIndex()
    lost = 0
    async for page in self._store.scan(layout.log_prefix(order.segment_id)):
        lost += await asyncio.to_thread(_replay_page, content, order, page)
    entries, _ = content.segment_usage(0)
    bodies = list(content.snapshot(0, segment_logs.RECORD_ENTRIES_MAX))
    if lost:
        return CompactionEnded(order.segment_id, order.run, damaged=True)
    for chunk, body in enumerate(bodies):
        await self._committer.wait_for_room()
        record = Record(RecordKind.SNAPSHOT, order.through_seq, order.through_seq, body).encode()
        await self._committer.commit((Put(layout.snapshot_key(order.segment_id, generation, chunk), record),))
    if self._is_wanted(order):
        await _replace_log(self, order, segment, Snapshot(generation, order.through_seq, len(bodies)))
        segment.logged_entries += entries - entries_before
    return CompactionEnded(order.segment_id, order.run)


async def _replace_log(compactor: Compactor, order: CompactLog, segment: Segment, snapshot: Snapshot) -> None:
    segment.record = replace(segment.record, snapshot=snapshot)
    ops = (
        Put(layout.segment_key(order.segment_id), segment.record.encode()),
        layout.journal_before(order.segment_id, order.through_seq + 1),
        layout.snapshots_before(order.segment_id, snapshot.generation),
    )
    try:
        await compactor._committer.commit(ops)
    except BaseException:
        if segment.record.snapshot == snapshot:
            segment.record = replace(segment.record, snapshot=segment.durable_snapshot)
        raise
    if segment.record.snapshot == snapshot:
        segment.durable_snapshot = snapshot


def _replay_page(content: DirectoryIndex, order: CompactLog, page: list[tuple[bytes, bytes]]) -> int:
    """How many records of the page were lost."""
    lost = 0
    for key, value in page:
        try:
            at = layout.parse_log_key(key)
            if at.first_seq is None:
                if at.generation != order.snapshot.generation or at.chunk >= order.snapshot.chunks:
                    continue
                record = Record.decode(value, RecordKind.SNAPSHOT)
            elif at.first_seq <= order.through_seq:
                record = decode_journal(value, at.first_seq)
            else:
                continue
            apply_entries(content, 0, record.body, numbered=record.kind is RecordKind.JOURNAL)
        except (CorruptRecordError, ValueError):
            lost += 1
    return lost


WHOLE_SNAPSHOTS: tuple[Replacement, ...] = ((Compactor, "compact", _compact_whole),)


def all_at_once() -> AbstractContextManager[None]:
    """In a store that gets tight all logs that are too long are written anew at the same time, whether there is room for that or not.

    And nobody defragments etcd or ends its alarm, as nobody did then: today's upkeep makes up for such a compaction. Of the first five
    seeds of the tight store three don't come back to rest with this, one with today's compaction and no upkeep, and none with
    today's upkeep whichever way logs are compacted. So what this shows is that the simulation sees a store that stays full."""

    async def drop_past(self: EtcdUpkeep, level: SpaceLevel) -> None:
        await self._drop_past(self._options.compact_period_s)

    async def nothing(self: EtcdUpkeep) -> None:
        return

    return replaced(
        *WHOLE_SNAPSHOTS,
        (log_compaction, "COMPACTIONS_MAX", 1 << 30),
        (StoreSpace, "takes_upkeep", property(lambda self: True)),
        (EtcdUpkeep, "keep_up", drop_past),
        (EtcdUpkeep, "end_alarm_without_leader", nothing),
    )


def while_an_inventory_is_on_its_way() -> AbstractContextManager[None]:
    """The snapshot that the record names is read though it is not in the store yet, and what little was found takes its place. (Without
    the guard today's rewriting in place loses nothing on these seeds: it writes no snapshot that could.)"""
    right_due, right_begin = LogCompaction._is_due, LogCompaction._begin

    def is_due(self: LogCompaction, now: float, segment: Segment, dead: int) -> bool:
        durable, segment.durable_snapshot = segment.durable_snapshot, segment.record.snapshot
        try:
            return right_due(self, now, segment, dead)
        finally:
            segment.durable_snapshot = durable

    def begin(self: LogCompaction, segment: Segment) -> CompactLog:
        return replace(right_begin(self, segment), snapshot=segment.record.snapshot)

    return replaced(*WHOLE_SNAPSHOTS, (LogCompaction, "_is_due", is_due), (LogCompaction, "_begin", begin))
