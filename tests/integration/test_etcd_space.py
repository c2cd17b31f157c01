"""A small etcd that fills up: logs are compacted in time, its file is defragmented, and what was refused is taken again unattended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from kvstore.etcd import etcd_pb2 as pb

from kvstore.common.errors import KvstoreError, StoreError
from kvstore.master.compaction import Compactor
from kvstore.master.directory import Directory
from kvstore.master.metadata.etcd import EtcdStore, open_uri
from kvstore.master.metadata.etcd_client import EtcdClient, NoSpaceError
from kvstore.master.metadata.store import Put, SpaceLevel
from kvstore.master.metrics import MasterMetrics
from kvstore.master.recovery import corruption_reporter, recover
from kvstore.master.state.directory_state import StateLimits
from kvstore.master.state.log_compaction import LogLimits
from kvstore.master.state.placement import POLICIES
from support.etcd_server import Etcd
from support.journal_load import LoadSegment
from support.master_peers import until

QUOTA_BYTES = 64 << 20
SEGMENTS = 40
NEVER = LogLimits(compaction_floor_entries=10**9, tight_compaction_floor_entries=10**9)
TIMEOUT_S = 60.0
STATUS_DELAY_S = 0.1  # etcd's sizes are those of its last batch


class Meter:
    """Looks at etcd all the while, as an operator would: the most that it held, and whether it still gives leases."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self.in_use = self.file = 0.0  # the most, as shares of the quota
        self.now = 0.0
        self.alarms = self.leases_refused = 0

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(0.05)

    async def look(self) -> None:
        status = await self._client.status(30.0)
        self.now = status.db_size_in_use / QUOTA_BYTES
        self.in_use = max(self.in_use, self.now)
        self.file = max(self.file, status.db_size / QUOTA_BYTES)
        self.alarms += len(await self._client.nospace_alarms())
        try:
            lease, _ = await self._client.lease_grant(5.0)
            await self._client.lease_revoke(lease)
        except StoreError:
            self.leases_refused += 1


class Cluster:
    """One etcd, a directory that leads on it, and segments."""

    def __init__(self, etcd: Etcd, options: dict[str, object]) -> None:
        self.etcd = etcd
        self._options = options
        self.client = EtcdClient([member.endpoint for member in etcd.members], 30.0)
        self.meter = Meter(self.client)
        self.segments: list[LoadSegment] = []
        self.failures: list[KvstoreError] = []
        self.store: EtcdStore = None  # type: ignore[assignment]
        self.directory: Directory = None  # type: ignore[assignment]
        self.metrics = MasterMetrics()

    async def lead(self, limits: LogLimits | None = None) -> None:
        self.store = open_uri(self.etcd.uri(quota_bytes=QUOTA_BYTES, ttl_s=30, **self._options))
        await self.store.open()
        fence = await self.store.acquire()
        recovered = await recover(self.store, fence, corruption_reporter(self.metrics))
        self.directory = Directory(
            self.store,
            fence,
            recovered,
            StateLimits(log=limits or LogLimits()),
            POLICIES["host-first"](random.Random(1)),
            self.metrics,
            run_bytes=1 << 20,
            on_fenced=lambda error: None,
            on_failed=self.failures.append,
        )
        self.directory.start()

    async def attach(self, live_max: int, segments: int = SEGMENTS) -> None:
        if not self.segments:
            self.segments = [LoadSegment(n, random.Random(n), live_max) for n in range(segments)]
        for segment in self.segments:
            segment.attach(self.directory)
        await asyncio.wait_for(asyncio.gather(*(s.ready.wait() for s in self.segments)), TIMEOUT_S)

    async def change(self, entries: int, rounds: int, backlog_batches: int = 4) -> None:
        """All segments at the same time, each at most so many batches ahead of what is acked."""
        for _ in range(rounds):
            for segment in self.segments:
                segment.change(entries)
            await until(
                lambda: all(len(s.batches) < backlog_batches for s in self.segments), "acks", TIMEOUT_S
            )

    async def all_acked(self) -> None:
        await until(lambda: not any(s.batches for s in self.segments), "everything is acked", TIMEOUT_S)

    async def kill(self) -> None:
        """The leader ends in the middle of what it does; nothing is committed or given back on the way."""
        for segment in self.segments:
            segment.directory = None
            segment.ready.clear()
        self.directory._stopping = True
        tasks = [*self.directory._tasks._tasks, *self.directory._committing._tasks]
        self.directory._tasks._stopping = self.directory._committing._stopping = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.store.close()

    def level(self) -> SpaceLevel:
        return self.directory.store_view.level

    def assert_nothing_lost(self) -> None:
        state = self.directory.state
        for segment in self.segments:
            known = state.segments.get(segment.segment_id)
            assert known is not None and not known.damaged
            segment.assert_in(state.index, known.index, known.durable_seq)

    def compactions(self) -> float:
        name = "kvstore_master_events_total"
        return self.metrics.registry.get_sample_value(name, {"event": "log_compacted"}) or 0.0

    async def close(self) -> None:
        for segment in self.segments:
            segment.directory = None
        if self.directory is not None:
            await self.directory.stop()
        if self.store is not None:
            await self.store.close()
        await self.client.close()
        assert self.failures == []


@pytest.fixture
async def new_cluster(tmp_path: Path) -> AsyncIterator[Callable[..., Cluster]]:
    clusters: list[Cluster] = []

    def new(members: int = 1, **options: object) -> Cluster:
        etcd = Etcd(tmp_path / "etcd", members, (f"--quota-backend-bytes={QUOTA_BYTES}",)).start()
        clusters.append(Cluster(etcd, {"compact_period_s": 5, **options}))
        return clusters[-1]

    yield new
    for cluster in clusters:
        await cluster.close()
        cluster.etcd.close()


async def test_an_etcd_that_was_left_at_three_quarters_is_brought_back_without_ever_getting_full(
    new_cluster: Callable[..., Cluster],
) -> None:
    """Many logs are due at the same time, and their live entries alone would not fit a second time."""
    cluster = new_cluster()
    await cluster.lead(NEVER)
    await cluster.attach(live_max=16_000)
    while cluster.meter.now < 0.73:
        await cluster.change(2000 if cluster.meter.now < 0.6 else 500, 1)
        await cluster.all_acked()
        await asyncio.sleep(2 * STATUS_DELAY_S)
        await cluster.meter.look()
    await cluster.kill()
    await cluster.lead()
    await cluster.attach(0)
    watching = asyncio.ensure_future(cluster.meter.run())
    started = time.monotonic()
    await until(
        lambda: cluster.level() is SpaceLevel.NORMAL and cluster.compactions() >= SEGMENTS, "room", TIMEOUT_S
    )
    watching.cancel()
    print(
        f"{time.monotonic() - started:.1f} s, at most {cluster.meter.in_use:.0%} in use, file {cluster.meter.file:.0%}"
    )
    assert cluster.meter.in_use < 0.9 and cluster.meter.file < 1.0
    assert (cluster.meter.alarms, cluster.meter.leases_refused) == (0, 0)
    cluster.assert_nothing_lost()
    await cluster.change(100, 1)
    await cluster.all_acked()


async def test_under_load_of_many_times_its_quota_etcd_keeps_room_and_nothing_is_refused_for_long(
    new_cluster: Callable[..., Cluster],
) -> None:
    cluster = new_cluster()
    await cluster.lead()
    await cluster.attach(live_max=16_000)
    watching = asyncio.ensure_future(cluster.meter.run())
    started = time.monotonic()
    await cluster.change(4000, 13)
    await cluster.all_acked()
    seconds = time.monotonic() - started
    watching.cancel()
    entries = sum(s.last_seq for s in cluster.segments)
    print(
        f"{entries} entries in {seconds:.1f} s, at most {cluster.meter.in_use:.0%} in use, file "
        f"{cluster.meter.file:.0%}, {cluster.compactions():.0f} compactions"
    )
    assert entries * 20 > QUOTA_BYTES
    assert cluster.meter.in_use < 0.95 and cluster.meter.file < 1.0
    assert (cluster.meter.alarms, cluster.meter.leases_refused) == (0, 0)
    cluster.assert_nothing_lost()
    await cluster.kill()
    await cluster.lead()
    cluster.assert_nothing_lost()


async def test_a_leader_that_ends_in_the_middle_of_compactions_has_lost_nothing_that_was_acked(
    new_cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = new_cluster()
    limits = LogLimits(compaction_factor=1.1, compaction_floor_entries=2000)
    await cluster.lead(limits)
    await cluster.attach(live_max=8000, segments=6)
    steps: list[bytes] = []
    plain = Compactor.step_stored

    def stored(self: Compactor, segment_id: bytes, run: int) -> None:
        steps.append(segment_id)
        plain(self, segment_id, run)

    monkeypatch.setattr(Compactor, "step_stored", stored)

    def in_the_middle() -> bool:
        running = [s for s in cluster.directory.state.segments if s.compaction is not None]
        return any(segment.segment_id in steps for segment in running)

    for _ in range(4):
        steps.clear()
        for segment in cluster.segments * 24:
            segment.change(1000)
        await until(in_the_middle, "a step of a compaction that goes on is stored", TIMEOUT_S)
        await cluster.kill()
        await cluster.lead(limits)
        cluster.assert_nothing_lost()
        await cluster.attach(0)
        await cluster.all_acked()
        cluster.assert_nothing_lost()


def etcd_uri(cluster: Cluster) -> str:
    return cluster.etcd.uri(quota_bytes=QUOTA_BYTES, ttl_s=30, compact_period_s=5)


async def put_other(cluster: Cluster, key: bytes, size_bytes: int) -> bytes:
    """Something else in the same etcd. Returns its key."""
    put = pb.PutRequest(key=key, value=random.Random(key).randbytes(size_bytes))
    await cluster.client.txn(pb.TxnRequest(success=[pb.RequestOp(request_put=put)]))
    return key


async def fill(cluster: Cluster, share: float) -> list[bytes]:
    """Something else takes up a share of the quota, or all of it. Returns its keys."""
    keys = []
    with contextlib.suppress(NoSpaceError):
        for number in range(int(share * QUOTA_BYTES) >> 20):
            keys.append(await put_other(cluster, b"other/%d" % number, 1 << 20))
    return keys


async def fill_for_good(cluster: Cluster) -> list[bytes]:
    """Until what etcd has in use is all of its quota and its alarm is raised: one that is raised while defragmenting gives
    a little room is ended at once by the leader. What comes in one burst is held against the size before it, so that it
    gets there."""
    keys = await fill(cluster, 0.9)
    for burst in itertools.count():
        names = [b"other/%d-%d" % (burst, each) for each in range(32)]
        puts = [put_other(cluster, name, 256 << 10) for name in names]
        for ended in await asyncio.gather(*puts, return_exceptions=True):
            if isinstance(ended, bytes):
                keys.append(ended)
            else:
                assert isinstance(ended, NoSpaceError)
        status = await cluster.client.status(30.0)
        if status.db_size_in_use >= QUOTA_BYTES and await cluster.client.nospace_alarms():
            break
        await asyncio.sleep(2 * STATUS_DELAY_S)
    return keys


async def remove(cluster: Cluster, keys: list[bytes]) -> None:
    for key in keys:
        await cluster.client.delete(key)


@pytest.mark.timeout(300)
async def test_an_alarm_sheds_puts_and_no_reads_and_ends_by_itself_when_there_is_room_again(
    new_cluster: Callable[..., Cluster],
) -> None:
    cluster = new_cluster()
    await cluster.lead()
    await cluster.attach(live_max=4000, segments=4)
    await cluster.change(1000, 3)
    await cluster.all_acked()
    keys = await asyncio.wait_for(fill_for_good(cluster), 2 * TIMEOUT_S)
    await until(lambda: cluster.level() is SpaceLevel.FULL, "the leader sees it", TIMEOUT_S)
    await cluster.change(100, 1)
    with pytest.raises(StoreError, match="space exceeded"):
        await cluster.client.lease_grant(5.0)
    cluster.assert_nothing_lost()  # reads
    assert cluster.directory.state.segments.get(cluster.segments[0].segment_id)
    assert all(segment.batches for segment in cluster.segments), "what can't be durable is not acked"

    await remove(cluster, keys)
    await cluster.all_acked()
    await until(lambda: cluster.level() is SpaceLevel.NORMAL, "room", TIMEOUT_S)
    assert not await cluster.client.nospace_alarms()
    lease, _ = await cluster.client.lease_grant(5.0)
    await cluster.client.lease_revoke(lease)
    cluster.assert_nothing_lost()


async def test_an_alarm_without_a_leader_is_ended_by_whoever_wants_to_lead(
    new_cluster: Callable[..., Cluster],
) -> None:
    cluster = new_cluster()
    await cluster.lead()
    await cluster.attach(live_max=4000, segments=2)
    await cluster.change(1000, 2)
    await cluster.all_acked()
    await cluster.kill()
    keys = await fill(cluster, 3.0)  # until one is refused: etcd knows its size a moment later only
    assert await cluster.client.nospace_alarms()
    await remove(cluster, keys)
    assert await cluster.client.nospace_alarms()
    stores = [open_uri(etcd_uri(cluster)) for _ in range(2)]
    for store in stores:
        await store.open()

    async def campaign(store: EtcdStore) -> EtcdStore:
        while True:
            try:
                await store.campaign()
                return store
            except StoreError:
                await asyncio.sleep(0.1)

    campaigns = [asyncio.ensure_future(campaign(store)) for store in stores]
    done, waiting = await asyncio.wait(campaigns, timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1, "one leads"
    assert not await cluster.client.nospace_alarms()
    for each in waiting:
        each.cancel()
    for store in stores:
        await store.close()
    await cluster.lead()
    cluster.assert_nothing_lost()


async def test_members_are_defragmented_one_at_a_time_etcds_leader_last_and_none_while_one_is_down(
    new_cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = new_cluster(members=3)
    running: list[int] = []
    order: list[bool] = []
    plain = EtcdClient.defragment

    async def watched(self: EtcdClient, endpoint: int, timeout_s: float) -> None:
        assert not running, "two at a time"
        running.append(endpoint)
        order.append(cluster.etcd.members[endpoint].is_raft_leader())
        await plain(self, endpoint, timeout_s)
        running.clear()

    monkeypatch.setattr(EtcdClient, "defragment", watched)
    # Without a directory, so that nobody else sees to it at the same time.
    store = cluster.store = open_uri(etcd_uri(cluster))
    await store.open()
    fence = await store.acquire()
    down = next(member for member in cluster.etcd.members if not member.is_raft_leader())
    keys = await fill(cluster, 0.7)
    down.kill()
    await remove(cluster, keys)
    await asyncio.to_thread(next(m for m in cluster.etcd.members if m is not down).compact)
    for _ in range(3):
        await store.keep_up()
    assert order == [], "the others would have no majority while one of them rewrites its file"
    down.start()
    await asyncio.to_thread(down.wait_healthy)

    async def emptied() -> bool:
        await store.commit((Put(b"k", b"v"),), fence)  # pages are free from the next write on
        statuses = [await cluster.client.status_of(endpoint) for endpoint in range(3)]
        return all(status.db_size_in_use < 0.2 * QUOTA_BYTES for status in statuses)

    await until(emptied, "every member has dropped what was deleted", TIMEOUT_S)

    await store.keep_up()
    assert order == [False, False, True]
    for endpoint in range(3):
        assert (await cluster.client.status_of(endpoint)).db_size < 0.2 * QUOTA_BYTES
    await store.keep_up()
    assert len(order) == 3, "not again when there is nothing to gain"
