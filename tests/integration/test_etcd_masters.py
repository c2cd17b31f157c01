"""Two masters on one etcd: what a standby knows, serves and refuses, and what changes hands."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvstore.master.ha.follower import Follower
from kvstore.master.metadata.etcd import open_uri
from kvstore.master.metadata.etcd_client import EtcdClient
from kvstore.master.metadata.replicated import Update
from kvstore.master.metrics import MasterMetrics
from kvstore.master.roles import Roles
from kvstore.master.server import MasterServer
from kvstore_client import protocol
from kvstore_client.protocol import NO_SEGMENT, Op, SegmentState, Status
from kvstore_client.protocol.journal import JournalOp
from support import wire
from support.etcd_server import own_prefix, shared_etcd
from support.master_peers import DirectoryPeer, SegmentPeer, fingerprints, settings, until

StartMaster = Callable[..., Awaitable[MasterServer]]
LONG_TTL_S = 30  # far longer than a test: what happens in time did not wait for it


@pytest.fixture
async def start_master(tmp_path: Path) -> AsyncIterator[StartMaster]:
    """await start_master(**settings): each on this test's prefix; the first one leads when it returns."""
    servers: list[MasterServer] = []

    async def start(**changes: Any) -> MasterServer:
        uri = shared_etcd().uri(own_prefix(tmp_path), ttl_s=LONG_TTL_S)
        server = MasterServer(settings(tmp_path, metadata=uri, **changes))
        await server.start()
        servers.append(server)
        await until(lambda: role(server) == ("leader" if len(servers) == 1 else "standby"), "it has its role")
        return server

    yield start
    for server in reversed(servers):
        await server.stop()


def role(server: MasterServer) -> str:
    return server._readiness()[1]


def metric(server: MasterServer, name: str) -> float:
    value = server.metrics.registry.get_sample_value(f"kvstore_master_{name}")
    assert value is not None
    return value


async def look_up(peer: DirectoryPeer, ns: bytes, fps: bytes) -> list[int]:
    status, fields = await peer.call(Op.LOOKUP, wire.LookupRequest(ns, fps, 1))
    assert status is Status.OK, fields
    return list(wire.LookupReply.decode(fields).segments)


# ---- the standby -------------------------------------------------------------------------------------------


LAG_S = 0.02


async def test_what_a_writer_was_told_is_stored_is_found_at_a_standby_that_is_behind_at_once(
    start_master: StartMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = Follower._apply

    async def apply_late(self: Follower, update: Update) -> None:
        await asyncio.sleep(LAG_S)
        await apply(self, update)

    monkeypatch.setattr(Follower, "_apply", apply_late)
    leader, standby = await start_master(), await start_master()
    there, here = [await DirectoryPeer.greeted(server.directory_port) for server in (leader, standby)]
    ns = await there.open_namespace(model="m")
    segment = SegmentPeer(leader.control_port, 1)
    await segment.attach()
    await until(lambda: standby._roles.backend.is_current(ns), "the standby knows the namespace")
    for seed in range(60):
        fps = fingerprints(8, seed=seed)
        await segment.journal(ns, fps)
        await segment.acked()
        if seed % 2:
            assert NO_SEGMENT not in await look_up(here, ns, fps), f"pages of turn {seed}"
        else:
            status, fields = await here.call(Op.EXISTS, wire.ExistsRequest(ns, fps))
            assert status is Status.OK
            assert all(wire.ExistsReply.decode(fields).present), f"pages of turn {seed}"
    assert metric(standby, "unconfirmed_misses_total") == 0
    assert metric(standby, "misses_waited_total") > 0, "some were not there yet"


async def test_a_standby_whose_store_hangs_answers_with_what_it_has(
    start_master: StartMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, standby = await start_master(), await start_master()
    there, here = [await DirectoryPeer.greeted(server.directory_port) for server in (leader, standby)]
    ns = await there.open_namespace(model="m")
    await until(lambda: standby._roles.backend.is_current(ns), "the standby knows the namespace")

    async def hangs(self: object) -> tuple[int, int]:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(type(standby._store), "revisions", hangs)
    for _ in range(20):
        assert await look_up(here, ns, fingerprints(8, seed=1)) == [NO_SEGMENT] * 8
    assert metric(standby, "unconfirmed_misses_total") >= 1
    assert metric(standby, "misses_waited_total") < 20, "one read a second waits for it, not all"


async def test_a_standby_answers_reads_like_the_leader_and_refuses_changes(start_master: StartMaster) -> None:
    leader, standby = await start_master(), await start_master()
    there, here = [await DirectoryPeer.greeted(server.directory_port) for server in (leader, standby)]
    ns = await there.open_namespace(model="m")
    fps = fingerprints(20, seed=1)
    segments = [SegmentPeer(leader.control_port, number) for number in (1, 2)]
    for number, segment in enumerate(segments):
        await segment.attach()
        await segment.journal(ns, fps[number * 160 : number * 160 + 160])
        await segment.acked()

    async def known() -> bool:
        status, fields = await here.call(Op.EXISTS, wire.ExistsRequest(ns, fps))
        return status is Status.OK and all(wire.ExistsReply.decode(fields).present)

    await until(known, "the standby knows what was acknowledged")
    assert await look_up(here, ns, fps) == await look_up(there, ns, fps)
    assert await here.open_namespace(model="m") == ns

    async def same_map() -> bool:
        return await here.segment_map() == await there.segment_map() and here.map_epoch == there.map_epoch

    await until(same_map, "the standby has the leader's map, epoch and all")

    for op, request in (
        (Op.PLACE, wire.PlaceRequest(ns, (100,), fingerprints(1, seed=2))),
        (Op.BUMP_NAMESPACE, protocol.BumpNamespaceRequest(ns)),
        (Op.OPEN_NAMESPACE, protocol.OpenNamespaceRequest(b'{"model":"new"}', "test")),
        (Op.EXISTS, wire.ExistsRequest(b"\x00" * 8, fps)),
    ):
        status, text = await here.call(op, request)
        assert status is Status.NOT_LEADER, op
        assert f"127.0.0.1:{leader.control_port}".encode() in text
    for segment in segments:
        await segment.close()


async def test_a_segment_that_comes_to_a_standby_is_told_where_the_leader_is(
    start_master: StartMaster,
) -> None:
    leader, standby = await start_master(), await start_master()
    segment = SegmentPeer(standby.control_port)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await segment.attach()
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert f"127.0.0.1:{leader.control_port}" in (refused.value.details() or "")
    assert ("kvstore-role", "standby") in [tuple(entry) for entry in refused.value.trailing_metadata()]
    assert not (await segment.heartbeat()).known
    await segment.close()


async def test_what_the_leader_finds_suspect_the_standby_does_not_serve(start_master: StartMaster) -> None:
    leader, standby = await start_master(), await start_master()
    there, here = [await DirectoryPeer.greeted(server.directory_port) for server in (leader, standby)]
    ns = await there.open_namespace(model="m")
    segment = SegmentPeer(leader.control_port)
    await segment.attach()
    fps = fingerprints(5, seed=1)
    await segment.journal(ns, fps)
    await segment.acked()
    await until(lambda: standby._roles.backend.is_current(ns), "the namespace is known")

    async def served() -> bool:
        return all(await here.exists(ns, fps))

    async def hidden() -> bool:
        return not any(await here.exists(ns, fps))

    await until(served, "the standby serves it")
    segment.call.cancel()
    await until(hidden, "the standby hides it")
    assert [record.state for record in await here.segment_map()] == [SegmentState.SUSPECT]
    await segment.attach()
    await until(served, "the standby serves it again")
    await segment.close()


async def test_a_standby_has_what_the_leader_has_after_inventories_compactions_and_new_pools(
    start_master: StartMaster,
) -> None:
    changes = {"compaction_floor_entries": 50}
    leader, standby = await start_master(**changes), await start_master(**changes)
    there, here = [await DirectoryPeer.greeted(server.directory_port) for server in (leader, standby)]
    ns = await there.open_namespace(model="m")
    rng = random.Random(11)
    pool = [fingerprints(1, seed=number) for number in range(200)]
    segments = [SegmentPeer(leader.control_port, number) for number in (1, 2)]
    for segment in segments:
        await segment.attach()
    for round_number in range(30):
        for segment in segments:
            await segment.journal(ns, b"".join(rng.sample(pool, 10)), JournalOp.ADD)
            await segment.journal(ns, b"".join(rng.sample(pool, 6)), JournalOp.REMOVE)
            await segment.acked()
        if round_number == 15:
            # New memory: everything that it held before is gone.
            await segments[0].close()
            segments[0] = SegmentPeer(leader.control_port, 1)
            segments[0].pool_id = b"\xee" * 16
            await segments[0].attach()
    events = leader.metrics.registry.get_sample_value(
        "kvstore_master_events_total", {"event": "log_compacted"}
    )
    assert events is not None and events >= 2
    everything = b"".join(pool)
    await until(lambda: standby._roles.backend.is_current(ns), "the namespace is known")
    wanted = await there.exists(ns, everything)
    assert 0 < sum(wanted) < len(pool)

    async def same() -> bool:
        return await here.exists(ns, everything) == wanted

    await until(same, "both know the same pages")
    assert metric(standby, "directory_reloads_total") == 0
    # And as the leader.
    for segment in segments:
        await segment.close()
    await leader.stop()
    await until(lambda: role(standby) == "leader", "the standby leads")
    assert await here.exists(ns, everything) == wanted


# ---- what changes hands ------------------------------------------------------------------------------------


async def test_a_leader_that_stops_hands_over_at_once_with_all_that_was_acknowledged(
    start_master: StartMaster,
) -> None:
    leader, standby = await start_master(), await start_master()
    there, here = [await DirectoryPeer.greeted(server.directory_port) for server in (leader, standby)]
    ns = await there.open_namespace(model="m")
    segment = SegmentPeer(leader.control_port)
    index = (await segment.attach()).segment_index
    fps = fingerprints(30, seed=1)
    await segment.journal(ns, fps)
    await segment.acked()
    old_epoch = there.map_epoch
    await segment.close()
    await leader.stop()
    await until(lambda: role(standby) == "leader", "the standby leads", LONG_TTL_S / 3)

    # The connection of before goes on, and nothing has to be sent again.
    assert all(await here.exists(ns, fps))
    assert here.map_epoch > old_epoch
    again = SegmentPeer(standby.control_port)
    again.last_seq = segment.last_seq
    registered = await again.attach()
    assert (registered.segment_index, registered.durable_seq) == (index, 30)
    assert not registered.need_inventory
    status, fields = await here.call(Op.PLACE, wire.PlaceRequest(ns, (100,), fingerprints(1, seed=2)))
    assert status is Status.OK and wire.PlaceReply.decode(fields).segments == (index,)
    await again.close()


async def test_a_cleared_namespace_stays_cleared_after_a_fail_over(start_master: StartMaster) -> None:
    leader, standby = await start_master(), await start_master()
    there, here = [await DirectoryPeer.greeted(server.directory_port) for server in (leader, standby)]
    old = await there.open_namespace(model="m")
    status, fields = await there.call(Op.BUMP_NAMESPACE, protocol.BumpNamespaceRequest(old))
    new = protocol.NamespaceReply.decode(fields).ns
    assert status is Status.OK and new != old
    await leader.stop()
    await until(lambda: role(standby) == "leader", "the standby leads")
    assert await here.open_namespace(model="m") == new
    status, _ = await here.call(Op.EXISTS, wire.ExistsRequest(old, fingerprints(1, seed=1)))
    assert status is Status.STALE_NAMESPACE
    status, fields = await here.call(Op.BUMP_NAMESPACE, protocol.BumpNamespaceRequest(old))
    assert status is Status.OK and protocol.NamespaceReply.decode(fields).ns == new


async def test_a_fenced_write_is_refused_counted_and_ends_the_leadership(
    start_master: StartMaster, tmp_path: Path
) -> None:
    server = await start_master()
    peer = await DirectoryPeer.greeted(server.directory_port)
    ns = await peer.open_namespace(model="m")
    segment = SegmentPeer(server.control_port)
    await segment.attach()
    kept, lost = fingerprints(3, seed=1), fingerprints(3, seed=2)
    await segment.journal(ns, kept)
    await segment.acked()
    client = EtcdClient([shared_etcd().members[0].endpoint])
    held, _ = await client.get(f"/{own_prefix(tmp_path)}/\x00leader".encode())
    assert held is not None
    await client.lease_revoke(held.lease)
    await client.close()
    await segment.journal(ns, lost)
    failure = await segment.failure()
    assert failure.code() is grpc.StatusCode.UNAVAILABLE
    await until(lambda: metric(server, "leader_changes_total") == 2, "it is elected again")
    assert metric(server, "fenced_writes_total") >= 1
    assert metric(server, "commit_failures_total") >= 1
    assert await peer.exists(ns, kept + lost) == [True] * 3 + [False] * 3
    await segment.close()


# ---- catching up -------------------------------------------------------------------------------------------


async def test_a_standby_is_ready_once_it_has_caught_up_and_reloads_when_its_past_was_compacted(
    start_master: StartMaster, tmp_path: Path
) -> None:
    leader = await start_master()
    peer = await DirectoryPeer.greeted(leader.directory_port)
    ns = await peer.open_namespace(model="m")
    segment = SegmentPeer(leader.control_port)
    await segment.attach()
    metrics = MasterMetrics()
    store = open_uri(shared_etcd().uri(own_prefix(tmp_path)))
    await store.open()
    follower = Follower(store, Roles(), metrics)
    await follower.load()
    assert not follower.ready
    # While it is away: two commits, and the past is dropped.
    for seed in (1, 2):
        await segment.journal(ns, fingerprints(2, seed))
        await segment.acked()
    await asyncio.to_thread(shared_etcd().members[0].compact)
    following = asyncio.gather(follower.run(), follower.watch_lag())
    await until(lambda: follower.ready, "it has caught up")
    # Once, or again where the leader's own upkeep has dropped what was read meanwhile.
    assert follower.loads >= 2
    reloads = metrics.registry.get_sample_value("kvstore_master_directory_reloads_total")
    assert reloads == follower.loads - 1
    assert follower.replay.index.entry_count == 4
    await segment.journal(ns, fingerprints(4, seed=3))
    await segment.acked()
    await until(lambda: follower.replay.index.entry_count == 8, "it follows from there")
    following.cancel()
    await store.close()
    await segment.close()


async def test_a_leader_knows_until_when_nobody_else_can_lead(start_master: StartMaster) -> None:
    leader = await start_master()
    tenure = leader._roles._tenure
    assert tenure is not None and tenure.lasts_until is not None and tenure.is_certain
    first = tenure.lasts_until
    await until(lambda: (tenure.lasts_until or 0.0) > first, "its lease is renewed")
    tenure.end("resigned")
    assert not tenure.is_certain
