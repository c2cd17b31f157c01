"""Makes a leader's state of what the store holds.

A corrupt record costs what it holds and nothing else: its segment is marked damaged (its next attach brings an
inventory that makes it whole), and a lost namespace raises the epoch floor, so that its past epochs never
come back.
"""

from __future__ import annotations

import secrets

from kvstore.master import layout
from kvstore.master.layout import ClusterRecord
from kvstore.master.metadata.store import Delete, Fence, MetadataStore, Op, OpSet, Put
from kvstore.master.replay import OnCorrupt, Replay, load
from kvstore.master.state import Recovered

# More bumps than one namespace sees between two losses of its record.
EPOCH_FLOOR_STEP = 1 << 20


async def recover(store: MetadataStore, fence: Fence, on_corrupt: OnCorrupt) -> Recovered:
    """Raises StoreError when the store can't be read, or the cluster record is corrupt."""
    return await take_over(await load(store, on_corrupt), store, fence)


async def take_over(replay: Replay, store: MetadataStore, fence: Fence) -> Recovered:
    """Writes what a new leader has to put right, and hands over the replay's index, which is not to be fed any more."""
    leftovers = list(replay.leftovers)
    cluster = replay.cluster
    if cluster is None or replay.lost_namespaces:
        if cluster is None:
            cluster = ClusterRecord(secrets.token_bytes(layout.ID_BYTES))
        if replay.lost_namespaces:
            cluster = ClusterRecord(cluster.cluster_id, cluster.epoch_floor + EPOCH_FLOOR_STEP)
        await store.commit((Put(layout.CLUSTER_KEY, cluster.encode()),), fence)
        # Only once the floor is durable may the broken records go.
        leftovers += [Delete(key) for key in replay.lost_namespaces]
    await _remove(leftovers, store, fence)
    return Recovered(cluster, replay.index, tuple(replay.segments()), tuple(replay.namespaces.values()))


async def _remove(leftovers: list[Op], store: MetadataStore, fence: Fence) -> None:
    """In as few commits as the bounds allow."""
    together = OpSet()
    for op in leftovers:
        if not together.fits((op,)):
            await store.commit(together.ops, fence)
            together = OpSet()
        together.add((op,))
    if together.ops:
        await store.commit(together.ops, fence)
