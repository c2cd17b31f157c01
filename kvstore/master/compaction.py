"""Rewrites a segment's log as a snapshot of itself, away from the event loop and from the live index.

The log is read back and replayed into an index of its own, whose content is written as the chunks of a new
generation. They count for nothing until the segment's record names them, which the state machine decides
(CompactionWritten).
"""

from __future__ import annotations

import asyncio

from kvstore.common.errors import CorruptRecordError
from kvstore.master.committer import Committer
from kvstore.master.metadata.store import MetadataStore, Put
from kvstore.master.state import layout
from kvstore.master.state.effects import CompactLog
from kvstore.master.state.events import CompactionWritten
from kvstore.master.state.journal_entries import apply_entries
from kvstore.master.state.records import Record, RecordKind
from kvstore.master.state.segment_logs import RECORD_ENTRIES_MAX
from kvstore_client._native import DirectoryIndex


async def compact(store: MetadataStore, committer: Committer, order: CompactLog) -> CompactionWritten:
    """Raises StoreError. What it wrote before failing is overwritten or removed by the next snapshot of the
    segment."""
    replay = DirectoryIndex()
    lost = 0
    async for page in store.scan(layout.log_prefix(order.segment_id)):
        lost += await asyncio.to_thread(_replay_page, replay, order, page)
    entries, _ = replay.segment_usage(0)
    bodies = await asyncio.to_thread(list, replay.snapshot(0, RECORD_ENTRIES_MAX))
    if not lost:
        for chunk, body in enumerate(bodies):
            await committer.wait_for_room()
            record = Record(RecordKind.SNAPSHOT, order.through_seq, order.through_seq, body).encode()
            key = layout.snapshot_key(order.segment_id, order.generation, chunk)
            await committer.commit((Put(key, record),))
    return CompactionWritten(
        order.segment_id, order.generation, order.through_seq, len(bodies), entries, lost
    )


def _replay_page(replay: DirectoryIndex, order: CompactLog, page: list[tuple[bytes, bytes]]) -> int:
    """How many records of the page were lost."""
    lost = 0
    for key, value in page:
        try:
            at = layout.parse_log_key(key)
            if at.first_seq is None:
                if at.generation != order.snapshot_generation or at.chunk >= order.snapshot_chunks:
                    continue
                record = Record.decode(value, RecordKind.SNAPSHOT)
            elif at.first_seq <= order.through_seq:
                record = Record.decode(value, RecordKind.JOURNAL)
            else:
                continue
            apply_entries(replay, 0, record.body, numbered=True)
        except (CorruptRecordError, ValueError):
            lost += 1
    return lost
