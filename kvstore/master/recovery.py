"""Reads the store back: cluster, namespaces, segments, and their logs into a fresh index.

A corrupt record costs what it holds and nothing else: it is counted and logged, its segment is marked
damaged (its next attach brings an inventory that makes it whole), and a lost namespace raises the epoch
floor, so that its past epochs never come back.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from kvstore.common.errors import CorruptRecordError, StoreError
from kvstore.common.logs import log_event
from kvstore.master import layout
from kvstore.master.layout import ClusterRecord, LogKey, NamespaceRecord, SegmentRecord
from kvstore.master.metadata.store import Delete, DeleteRange, Fence, MetadataStore, Op, OpSet, Put
from kvstore.master.records import Record, RecordKind
from kvstore.master.state import Recovered, RecoveredSegment
from kvstore_client._native import DirectoryIndex
from kvstore_client.wire_journal import count_entries, skip_entries

logger = logging.getLogger(__name__)

# More bumps than one namespace sees between two losses of its record.
EPOCH_FLOOR_STEP = 1 << 20

OnCorrupt = Callable[[str], None]  # kind of record


@dataclass(slots=True)
class _Log:
    """What has been read of one segment's log."""

    index: int
    record: SegmentRecord
    durable_seq: int
    next_generation: int
    chunks_seen: int = 0
    logged_entries: int = 0
    damaged: bool = False


async def recover(store: MetadataStore, fence: Fence, on_corrupt: OnCorrupt) -> Recovered:
    """Raises StoreError when the store can't be read, or the cluster record is gone while others are
    there."""
    return await _Recovery(store, fence, on_corrupt).run()


class _Recovery:
    def __init__(self, store: MetadataStore, fence: Fence, on_corrupt: OnCorrupt) -> None:
        self._store = store
        self._fence = fence
        self._on_corrupt = on_corrupt
        self._index = DirectoryIndex()
        self._logs: dict[bytes, _Log] = {}
        self._cleanup: list[Op] = []

    async def run(self) -> Recovered:
        cluster = await self._cluster()
        namespaces, lost = await self._namespaces()
        if lost:
            cluster = ClusterRecord(cluster.cluster_id, cluster.epoch_floor + EPOCH_FLOOR_STEP)
            await self._store.commit((Put(layout.CLUSTER_KEY, cluster.encode()),), self._fence)
            # Only once the floor is durable may the broken records go.
            self._cleanup += [Delete(key) for key in lost]
        await self._segments()
        async for page in self._store.scan(layout.LOGS_PREFIX):
            # In a thread: applying a page takes milliseconds, and the caller may be serving health checks.
            await asyncio.to_thread(self._load_page, page)
        await self._clean_up()
        segments = tuple(self._finish(segment_id, log) for segment_id, log in self._logs.items())
        return Recovered(cluster, self._index, segments, tuple(namespaces))

    async def _cluster(self) -> ClusterRecord:
        stored = await self._store.get(layout.CLUSTER_KEY)
        if stored is None:
            cluster = ClusterRecord(secrets.token_bytes(layout.ID_BYTES))
            await self._store.commit((Put(layout.CLUSTER_KEY, cluster.encode()),), self._fence)
            return cluster
        try:
            return ClusterRecord.decode(stored)
        except CorruptRecordError as error:
            raise StoreError(
                f"the cluster record is corrupt ({error}): restore the metadata store, "
                "or remove it to start an empty cluster"
            ) from error

    async def _namespaces(self) -> tuple[list[NamespaceRecord], list[bytes]]:
        """(the intact ones, keys of the others)"""
        intact, lost = [], []
        async for page in self._store.scan(layout.NAMESPACES_PREFIX):
            for key, value in page:
                try:
                    intact.append(NamespaceRecord.decode(value))
                except CorruptRecordError as error:
                    self._corrupt("namespace", key, error)
                    lost.append(key)
        return intact, lost

    async def _segments(self) -> None:
        async for page in self._store.scan(layout.SEGMENTS_PREFIX):
            for key, value in page:
                segment_id = key[len(layout.SEGMENTS_PREFIX) :]
                try:
                    record = SegmentRecord.decode(value)
                except CorruptRecordError as error:
                    # Its log says nothing without it. The segment starts anew when it attaches, with an
                    # inventory.
                    self._corrupt("segment", key, error)
                    self._cleanup += [layout.whole_log(segment_id), Delete(key)]
                    continue
                generation = record.generation + 1
                self._logs[segment_id] = _Log(len(self._logs), record, record.snapshot_seq, generation)

    def _load_page(self, page: list[tuple[bytes, bytes]]) -> None:
        for key, value in page:
            try:
                at = layout.parse_log_key(key)
            except CorruptRecordError as error:
                self._corrupt("log key", key, error)
                self._cleanup.append(Delete(key))
                continue
            log = self._logs.get(at.segment_id)
            if log is None:
                self._forget_orphan(layout.whole_log(at.segment_id))
                continue
            try:
                if at.first_seq is None:
                    self._load_chunk(log, at, value)
                else:
                    self._load_journal(log, at.first_seq, value)
            except (CorruptRecordError, ValueError) as error:
                log.damaged = True
                self._corrupt("snapshot" if at.first_seq is None else "journal", key, error)

    def _load_chunk(self, log: _Log, at: LogKey, value: bytes) -> None:
        log.next_generation = max(log.next_generation, at.generation + 1)
        if at.generation != log.record.generation or at.chunk >= log.record.snapshot_chunks:
            # A snapshot that was never finished, or was replaced.
            start = layout.snapshot_key(at.segment_id, at.generation, at.chunk)
            self._cleanup.append(Delete(start))
            return
        log.chunks_seen += 1
        record = Record.decode(value, RecordKind.SNAPSHOT)
        log.logged_entries += count_entries(record.body)
        self._index.apply(log.index, record.body)

    def _load_journal(self, log: _Log, first_seq: int, value: bytes) -> None:
        record = Record.decode(value, RecordKind.JOURNAL)
        entries = count_entries(record.body)
        if record.first_seq != first_seq or record.last_seq - record.first_seq + 1 != entries:
            raise CorruptRecordError(
                f"record counts {record.first_seq} to {record.last_seq}, "
                f"has {entries} entries, lies at {first_seq}"
            )
        log.logged_entries += entries
        if record.last_seq <= log.durable_seq:
            return
        if record.first_seq > log.durable_seq + 1:
            # The record before it was lost: what is here still counts, the segment's inventory will bring
            # the rest.
            log.damaged = True
            skip = 0
        else:
            skip = log.durable_seq + 1 - record.first_seq
        self._index.apply(log.index, skip_entries(record.body, skip))
        log.durable_seq = record.last_seq

    async def _clean_up(self) -> None:
        """Removes what no record stands for any more, in as few commits as the bounds allow."""
        together = OpSet()
        for op in self._cleanup:
            if not together.fits((op,)):
                await self._store.commit(together.ops, self._fence)
                together = OpSet()
            together.add((op,))
        if together.ops:
            await self._store.commit(together.ops, self._fence)

    def _forget_orphan(self, op: DeleteRange) -> None:
        if op not in self._cleanup:
            self._cleanup.append(op)

    def _finish(self, segment_id: bytes, log: _Log) -> RecoveredSegment:
        if log.chunks_seen != log.record.snapshot_chunks:
            log.damaged = True
        return RecoveredSegment(
            log.index,
            segment_id,
            log.record,
            log.durable_seq,
            log.logged_entries,
            log.next_generation,
            log.damaged,
        )

    def _corrupt(self, kind: str, key: bytes, error: Exception) -> None:
        self._on_corrupt(kind)
        log_event(logger, logging.ERROR, "record_corrupt", kind=kind, key=key, error=str(error))
