"""The control service of a real master: segments as peers of this release, which make links, and of the previous one."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from kvstore.v1 import admin_pb2, admin_pb2_grpc
from kvstore.v1 import control_pb2 as pb

from kvstore.master.metadata.replicated import Tenure
from kvstore.master.metadata.store import Fence
from kvstore.master.server import MasterServer
from kvstore_client import protocol
from kvstore_client.protocol import Op, SegmentState, Status
from kvstore_client.protocol.journal import JournalGroup, JournalOp, encode_groups
from support.master_peers import DirectoryPeer, LinkedPeer, SegmentPeer, fingerprints, settings, until


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[MasterServer]:
    server = MasterServer(settings(tmp_path, compaction_floor_entries=500, grace_s=60.0))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def peer(master: MasterServer) -> AsyncIterator[DirectoryPeer]:
    peer = await DirectoryPeer.greeted(master.directory_port)
    yield peer
    peer.close()


@pytest.fixture(params=[LinkedPeer, SegmentPeer], ids=["linked", "previous_release"])
async def segment(master: MasterServer, request: pytest.FixtureRequest) -> AsyncIterator[SegmentPeer]:
    segment: SegmentPeer = request.param(master.control_port)
    yield segment
    await segment.close()


def metric(master: MasterServer, name: str, **labels: str) -> float:
    return master.metrics.registry.get_sample_value(name, labels) or 0.0


async def test_registration_tells_a_segment_where_to_go_on(
    master: MasterServer, peer: DirectoryPeer, segment: SegmentPeer
) -> None:
    ns = await peer.open_namespace(model="m")
    registered = await segment.attach()
    assert (registered.segment_index, registered.durable_seq, registered.need_inventory) == (0, 0, False)
    assert list(registered.current_namespaces) == [ns]
    assert registered.cluster_id == master.directory.state.cluster_id
    await segment.journal(ns, fingerprints(10, 1))
    await segment.acked()
    again = type(segment)(master.control_port)
    again.last_seq = 10
    registered = await again.attach()
    assert (registered.durable_seq, registered.need_inventory) == (10, False)
    # The first stream was taken over.
    assert (await segment.failure()).code() is grpc.StatusCode.UNAVAILABLE
    await again.close()


async def test_a_master_that_may_lead_no_more_tells_no_segment_what_is_current(
    master: MasterServer, segment: SegmentPeer
) -> None:
    tenure = Tenure(Fence(1), 1)
    master._roles.lead(master.directory, tenure)
    await segment.attach()
    again = type(segment)(master.control_port)
    tenure.lasts_until = (
        time.monotonic()
    )  # it was stopped for longer than its lease, and has heard nothing yet
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await again.attach()
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    tenure.lasts_until = time.monotonic() + 60.0
    await again.close()
    again = type(segment)(master.control_port)
    await again.attach()
    await again.close()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"protocol_version": 0}, grpc.StatusCode.FAILED_PRECONDITION),
        ({"protocol_version": 1}, grpc.StatusCode.FAILED_PRECONDITION),
        ({"protocol_version": 3}, grpc.StatusCode.FAILED_PRECONDITION),
        ({"segment_id": b"short"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"pool_id": bytes(16)}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"host": ""}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"host": "x" * 256}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"tcp_port": 0}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"tcp_port": 65_536}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"unix_path": "/" + "x" * 107}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"capacity_bytes": 0}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_registration_that_does_not_fit_is_refused_with_a_reason(
    master: MasterServer, segment: SegmentPeer, changes: dict[str, Any], code: grpc.StatusCode
) -> None:
    segment.call = segment.stub.Attach()
    await segment.call.write(pb.SegmentMessage(register=segment.register(**changes)))
    failure = await segment.failure()
    assert failure.code() is code
    assert failure.details()
    refused = metric(master, "kvstore_master_version_refusals_total", port="control")
    assert refused == (code is grpc.StatusCode.FAILED_PRECONDITION)
    assert len(master.directory.state.segments) == 0


async def test_a_stream_begins_with_one_register(master: MasterServer, segment: SegmentPeer) -> None:
    segment.call = segment.stub.Attach()
    await SegmentPeer.send_batch(segment, 1, 1, b"")
    assert (await segment.failure()).code() is grpc.StatusCode.INVALID_ARGUMENT
    await segment.attach()
    await segment.call.write(pb.SegmentMessage(register=segment.register()))
    assert (await segment.failure()).code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_malformed_journal_ends_its_stream_and_no_other(
    master: MasterServer, peer: DirectoryPeer, segment: SegmentPeer
) -> None:
    ns = await peer.open_namespace(model="m")
    other = type(segment)(master.control_port, 2)
    await other.attach()
    for groups in (b"junk", bytes(16) * 60_000, b""):
        await segment.attach()
        await segment.send_batch(1, 1, groups)
        failure = await segment.failure()
        assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "journal" in (failure.details() or "")
    await other.journal(ns, fingerprints(3, 2))
    await other.acked()
    assert await peer.exists(ns, fingerprints(3, 2)) == [True] * 3
    await other.close()


async def test_a_broken_stream_hides_the_pages_and_a_new_one_shows_them_again(
    master: MasterServer, peer: DirectoryPeer, segment: SegmentPeer
) -> None:
    ns = await peer.open_namespace(model="m")
    await segment.attach()
    fps = fingerprints(5, 1)
    await segment.journal(ns, fps)
    await segment.acked()
    epoch = peer.map_epoch
    segment.call.cancel()

    async def hidden() -> bool:
        return not any(await peer.exists(ns, fps))

    await until(hidden, "the pages are hidden")
    assert peer.map_epoch > epoch
    assert (await peer.segment_map())[0].state == SegmentState.SUSPECT
    assert not (await segment.heartbeat()).known
    await segment.attach()
    assert await peer.exists(ns, fps) == [True] * 5
    assert (await segment.heartbeat(used_bytes=555)).known
    assert (await peer.segment_map())[0].used_bytes == 555


async def test_a_gap_is_mended_by_an_inventory(
    master: MasterServer, peer: DirectoryPeer, segment: SegmentPeer
) -> None:
    ns = await peer.open_namespace(model="m")
    await segment.attach()
    old, new = fingerprints(4, 1), fingerprints(6, 2)
    await segment.journal(ns, old)
    await segment.acked()
    segment.last_seq += 2  # lost
    await segment.journal(ns, new[:16])
    await segment.asked_for_inventory()
    for i in range(3):
        groups = encode_groups([JournalGroup(JournalOp.ADD, ns, new[i * 32 : i * 32 + 32], (9, 9))])
        await segment.send_chunk(segment.last_seq, groups, first=i == 0, last=i == 2)
    await segment.acked()
    assert await peer.exists(ns, old + new) == [False] * 4 + [True] * 6
    assert metric(master, "kvstore_master_events_total", event="journal_gap") == 1


async def test_a_goodbye_takes_the_pages_out(
    master: MasterServer, peer: DirectoryPeer, segment: SegmentPeer
) -> None:
    ns = await peer.open_namespace(model="m")
    await segment.attach()
    await segment.journal(ns, fingerprints(5, 1))
    await segment.acked()
    await segment.call.write(pb.SegmentMessage(leaving=pb.Leaving(reason="scaled in")))
    await segment.call.done_writing()
    assert await segment.read() is grpc.aio.EOF
    index = master.directory.state.index
    await until(lambda: index.entry_count == 0, "the entries are freed")
    assert await peer.exists(ns, fingerprints(5, 1)) == [False] * 5


async def test_the_map_is_watched_as_it_changes(master: MasterServer, segment: SegmentPeer) -> None:
    watch = segment.stub.WatchClusterMap(pb.WatchClusterMapRequest())
    first = await asyncio.wait_for(watch.read(), 10)
    assert list(first.segments) == []
    await segment.attach()
    second = await asyncio.wait_for(watch.read(), 10)
    assert second.epoch > first.epoch
    assert [s.state for s in second.segments] == [SegmentState.LIVE]
    segment.call.cancel()
    third = await asyncio.wait_for(watch.read(), 10)
    assert [s.state for s in third.segments] == [SegmentState.SUSPECT]
    assert third.epoch > second.epoch
    watch.cancel()


async def test_churn_leaves_a_log_of_bounded_size_and_nothing_is_lost(
    master: MasterServer, peer: DirectoryPeer, segment: SegmentPeer
) -> None:
    ns = await peer.open_namespace(model="m")
    await segment.attach()
    for round_number in range(60):
        await segment.journal(ns, fingerprints(100, 1), length=round_number + 1)
        await segment.acked()
    assert segment.last_seq == 6000
    await until(
        lambda: metric(master, "kvstore_master_events_total", event="log_compacted") >= 1, "a compaction"
    )
    known = master.directory.state.segments.get(segment.segment_id)
    assert known is not None
    await until(lambda: known.compaction is None and known.logged_entries <= 1000, "the log is short")
    stored = [key async for page in master._store.scan(b"l/") for key, _ in page]
    # A snapshot, ten records up to the floor, and those that came in while a snapshot was being written: not 60.
    assert len(stored) <= 24
    assert master.directory.state.index.segment_usage(known.index) == (100, 6000)


@pytest.mark.parametrize("kind", [LinkedPeer, SegmentPeer], ids=["linked", "previous_release"])
async def test_many_segments_journal_at_once_and_every_ack_is_true(
    master: MasterServer, peer: DirectoryPeer, kind: type[SegmentPeer]
) -> None:
    ns = await peer.open_namespace(model="m")
    segments = [kind(master.control_port, number) for number in range(1, 9)]
    await asyncio.gather(*(s.attach() for s in segments))

    async def work(number: int, s: SegmentPeer) -> None:
        for batch in range(20):
            fps = fingerprints(32, number * 1000 + batch)
            await s.journal(ns, fps)
            if batch % 3 == 0:
                await s.acked()
                assert await (await _peer(master)).exists(ns, fps) == [True] * 32
        await s.acked()

    peers: list[DirectoryPeer] = []

    async def _peer(server: MasterServer) -> DirectoryPeer:
        if len(peers) < 4:
            peers.append(await DirectoryPeer.greeted(server.directory_port))
            return peers[-1]
        return await DirectoryPeer.greeted(server.directory_port)

    # Lookups of different workers use connections of their own.
    await asyncio.gather(*(work(i, s) for i, s in enumerate(segments)))
    assert master.directory.state.index.entry_count == 8 * 20 * 32
    for s in segments:
        await s.close()


async def test_health_readiness_and_metrics_are_served(master: MasterServer) -> None:
    def get(path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{master.http_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    assert (await asyncio.to_thread(get, "/healthz"))[0] == 200
    assert (await asyncio.to_thread(get, "/readyz")) == (200, "ready\n")
    assert (await asyncio.to_thread(get, "/nothing"))[0] == 404
    status, text = await asyncio.to_thread(get, "/metrics")
    assert status == 200
    for name in (
        "kvstore_master_map_epoch",
        "kvstore_master_index_entries",
        'kvstore_master_segments{state="suspect"}',
        "kvstore_master_commit_seconds_bucket",
        "kvstore_master_bad_frames_total",
    ):
        assert name in text
    master._not_ready = "loading the directory"
    assert (await asyncio.to_thread(get, "/readyz"))[0] == 503


async def test_a_stopped_master_commits_what_it_had_accepted(tmp_path: Path) -> None:
    server = MasterServer(settings(tmp_path))
    await server.start()
    peer = await DirectoryPeer.greeted(server.directory_port)
    ns = await peer.open_namespace(model="m")
    segment = SegmentPeer(server.control_port)
    await segment.attach()
    await segment.journal(ns, fingerprints(50, 1))
    await segment.acked()
    await server.stop()
    await server.stop()
    peer.close()
    await segment.close()
    server = MasterServer(settings(tmp_path))
    await server.start()
    peer = await DirectoryPeer.greeted(server.directory_port)
    assert await peer.open_namespace(model="m") == ns
    assert await peer.exists(ns, fingerprints(50, 1)) == [True] * 50
    status, _ = await peer.call(3, b"short")
    assert status is Status.BAD_REQUEST
    peer.close()
    await server.stop()


# ---- tokens with roles -------------------------------------------------------------------------------------

TOKENS = "engine:the-engines\nsegment:the-segments\nadmin:the-admins\n"


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[MasterServer]:
    server = MasterServer(settings(tmp_path, token=TOKENS))
    await server.start()
    yield server
    await server.stop()


async def status_of(call: Any) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


@pytest.mark.parametrize("token", ["the-engines", "the-segments", "the-admins", "another"])
async def test_each_token_does_what_its_role_says_and_nothing_else(guarded: MasterServer, token: str) -> None:
    denied, wrong = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
    expected = {
        "the-engines": (denied, denied, None),
        "the-segments": (None, denied, None),
        "the-admins": (denied, None, None),
        "another": (wrong, wrong, wrong),
    }[token]
    peer = SegmentPeer(guarded.control_port, token=token)
    admin = admin_pb2_grpc.AdminStub(peer.channel)
    watch = peer.stub.WatchClusterMap(pb.WatchClusterMapRequest(), metadata=peer.metadata)
    calls = [
        (peer.attach(), peer.heartbeat()),
        (
            admin.GetStatus(admin_pb2.GetStatusRequest(), metadata=peer.metadata),
            admin.SetDraining(admin_pb2.SetDrainingRequest(segment_id=bytes(16)), metadata=peer.metadata),
            admin.ClearNamespace(admin_pb2.ClearNamespaceRequest(id=bytes(8)), metadata=peer.metadata),
        ),
        (watch.read(),),
    ]
    refusals = 0
    for code, group in zip(expected, calls, strict=True):
        for call in group:
            if code is not None:
                error = await refused(call)
                assert error.code() is code
                assert "role" in (error.details() or "") or code is wrong
                refusals += 1
                continue
            # There is no such segment or namespace.
            assert await status_of(call) in (grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND)
    assert metric(guarded, "kvstore_master_unauthorized_total", port="control") == refusals
    assert len(guarded.directory.state.segments) == (token == "the-segments")
    await peer.close()


async def test_an_engines_token_reads_writes_and_clears_and_is_no_tools(guarded: MasterServer) -> None:
    engine = await DirectoryPeer.greeted(guarded.directory_port, "the-engines")
    ns = await engine.open_namespace(model="m")
    assert await engine.exists(ns, fingerprints(1, 1)) == [False]
    status, fields = await engine.call(Op.BUMP_NAMESPACE, protocol.BumpNamespaceRequest(ns))
    assert (status, protocol.NamespaceReply.decode(fields).epoch) == (Status.OK, 1)
    assert await engine.open_namespace(model="m") != ns
    segment = await DirectoryPeer.connect(guarded.directory_port)
    hello = protocol.HelloRequest(protocol.Role.SEGMENT, "the-segments", "test")
    assert (await segment.call(Op.HELLO, hello))[0] is Status.OK
    status, text = await segment.call(Op.BUMP_NAMESPACE, protocol.BumpNamespaceRequest(ns))
    assert (status, b"engine" in text) == (Status.UNAUTHORIZED, True)
    segment.close()
    engine.close()
    for role, token in ((protocol.Role.CLIENT, "the-segments"), (protocol.Role.TOOL, "the-engines")):
        peer = await DirectoryPeer.connect(guarded.directory_port)
        status, text = await peer.call(Op.HELLO, protocol.HelloRequest(role, token, "test"))
        assert status is Status.UNAUTHORIZED and b"takes one with the role" in text
        assert await peer.ended()
    tool = await DirectoryPeer.connect(guarded.directory_port)
    status, _ = await tool.call(Op.HELLO, protocol.HelloRequest(protocol.Role.TOOL, "the-admins", "test"))
    assert status is Status.OK
    status, _ = await tool.call(Op.BUMP_NAMESPACE, protocol.BumpNamespaceRequest(ns))
    assert status is Status.OK
    tool.close()
    assert metric(guarded, "kvstore_master_unauthorized_total", port="directory") == 3
