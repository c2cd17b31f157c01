"""Reads what the store holds, and makes a leader's state of it.

A corrupt record costs what it holds and nothing else: its segment is marked damaged (its next attach brings an
inventory that makes it whole), and a lost namespace raises the epoch floor, so that its past epochs never
come back. Where whole commits are gone, any of them may have ended an epoch: every namespace begins a new one then, and every
segment brings an inventory.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import replace

from kvstore.common.identity import identity_hash
from kvstore.common.logs import log_event
from kvstore.master.metadata.replicated import StoreReader
from kvstore.master.metadata.store import COMMITS_LOST_KEY, Delete, Fence, MetadataStore, Op, OpSet, Put
from kvstore.master.metrics import MasterMetrics
from kvstore.master.state import layout
from kvstore.master.state.directory_state import Recovered
from kvstore.master.state.layout import ClusterRecord
from kvstore.master.state.replay import CorruptRecord, OnCorrupt, Replay

logger = logging.getLogger(__name__)

# More bumps than one namespace sees between two losses of its record. No epoch lies so far above the floor.
EPOCH_FLOOR_STEP = 1 << 20


async def load(reader: StoreReader, on_corrupt: OnCorrupt) -> Replay:
    """Everything that the reader has. Raises StoreError; NewerFormatError where a later release has written any of it."""
    replay = Replay(on_corrupt)
    replay.load_cluster(await reader.get(layout.CLUSTER_KEY))
    replay.commits_lost = await reader.get(COMMITS_LOST_KEY) is not None
    async for page in reader.scan(layout.NAMESPACES_PREFIX):
        for key, value in page:
            replay.load_namespace(key, value)
    async for page in reader.scan(layout.QUOTAS_PREFIX):
        for key, value in page:
            replay.load_quota(key, value)
    async for page in reader.scan(layout.SEGMENTS_PREFIX):
        for key, value in page:
            replay.load_segment(key, value)
    async for page in reader.scan(layout.LOGS_PREFIX):
        # In a thread: applying a page takes milliseconds, and the caller may be serving meanwhile.
        await asyncio.to_thread(replay.load_log, page)
    return replay


async def reload_segment(replay: Replay, reader: StoreReader, segment_id: bytes) -> bool:
    """Reads a segment's log anew, after `Replay.follow` has asked for it. False: there are changes to follow first. Raises
    StoreError."""
    fresh = replay.begin_reload(segment_id, await reader.get(layout.segment_key(segment_id)))
    if fresh is None:
        return False
    async for page in reader.scan(layout.log_prefix(segment_id)):
        await asyncio.to_thread(replay.reload_log, fresh, page)
    replay.end_reload(segment_id, fresh)
    return True


def corruption_reporter(metrics: MasterMetrics) -> OnCorrupt:
    """Logs and counts."""

    def report(record: CorruptRecord) -> None:
        metrics.corrupt_records.labels(record.kind).inc()
        log_event(logger, logging.ERROR, "record_corrupt", kind=record.kind, key=record.key, error=record.why)

    return report


async def recover(store: MetadataStore, fence: Fence, on_corrupt: OnCorrupt) -> Recovered:
    """Raises StoreError when the store can't be read, or the cluster record is corrupt."""
    return await take_over(await load(store, on_corrupt), store, fence)


async def take_over(replay: Replay, store: MetadataStore, fence: Fence) -> Recovered:
    """Writes what a new leader has to put right, and hands over the replay's index, which is not to be fed any more."""
    leftovers = list(replay.leftovers)
    cluster = replay.cluster
    namespaces = list(replay.namespaces.values())
    epochs_lost = bool(replay.lost_namespaces) or replay.commits_lost
    if cluster is None or epochs_lost:
        if cluster is None:
            cluster = ClusterRecord(secrets.token_bytes(layout.ID_BYTES))
        if epochs_lost:
            cluster = ClusterRecord(cluster.cluster_id, cluster.epoch_floor + EPOCH_FLOOR_STEP)
        await store.commit((Put(layout.CLUSTER_KEY, cluster.encode()),), fence)
        # Only once the floor is durable may the broken records go.
        leftovers += [Delete(key) for key in replay.lost_namespaces]
    if replay.commits_lost:
        namespaces = [replace(each, epoch=each.epoch + EPOCH_FLOOR_STEP) for each in namespaces]
        leftovers += [
            Put(layout.namespace_key(identity_hash(each.identity)), each.encode()) for each in namespaces
        ]
        leftovers.append(Delete(COMMITS_LOST_KEY))  # last
        log_event(logger, logging.ERROR, "namespaces_cleared", namespaces=len(namespaces))
    await _commit_all(leftovers, store, fence)
    return Recovered(
        cluster, replay.index, tuple(replay.segments()), tuple(namespaces), tuple(replay.quotas.values())
    )


async def _commit_all(ops: list[Op], store: MetadataStore, fence: Fence) -> None:
    """In their order, and in as few commits as the bounds allow."""
    together = OpSet()
    for op in ops:
        if not together.fits((op,)):
            await store.commit(together.ops, fence)
            together = OpSet()
        together.add((op,))
    if together.ops:
        await store.commit(together.ops, fence)
