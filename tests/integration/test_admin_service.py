"""The admin service of real masters, and the token that every call on their control port is asked for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message_factory import GetMessageClass
from kvstore.v1 import admin_pb2 as pb
from kvstore.v1 import admin_pb2_grpc, control_pb2

from kvstore import __version__
from kvstore.common.control_metadata import token_metadata
from kvstore.master.server import MasterServer
from kvstore_client import protocol
from kvstore_client.protocol import Op, SegmentState, Status
from support import wire
from support.etcd_server import own_prefix, shared_etcd
from support.master_peers import DirectoryPeer, LinkedPeer, SegmentPeer, fingerprints, settings, until

TOKEN = "hunter2"
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for module in (control_pb2, pb)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


class AdminPeer:
    """An operator's tool, call by call."""

    def __init__(self, server: MasterServer, token: str = "") -> None:
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.control_port}")
        self.stub = admin_pb2_grpc.AdminStub(self.channel)
        self._options: dict[str, Any] = {"metadata": token_metadata(token), "timeout": 10}

    async def status(self) -> Any:
        return await self.stub.GetStatus(pb.GetStatusRequest(), **self._options)

    async def segments(self) -> list[Any]:
        return [s async for s in self.stub.ListSegments(pb.ListSegmentsRequest(), **self._options)]

    async def namespaces(self) -> list[Any]:
        return [n async for n in self.stub.ListNamespaces(pb.ListNamespacesRequest(), **self._options)]

    async def stat(self, fingerprint: bytes) -> Any:
        return await self.stub.StatObject(pb.StatObjectRequest(fingerprint=fingerprint), **self._options)

    async def clear(self, ns: bytes) -> Any:
        return await self.stub.ClearNamespace(pb.ClearNamespaceRequest(id=ns), **self._options)

    async def drain(self, segment_id: bytes, draining: bool = True) -> Any:
        request = pb.SetDrainingRequest(segment_id=segment_id, draining=draining)
        return await self.stub.SetDraining(request, **self._options)


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[MasterServer]:
    server = MasterServer(settings(tmp_path))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def admin(master: MasterServer) -> AsyncIterator[AdminPeer]:
    peer = AdminPeer(master)
    yield peer
    await peer.channel.close()


@pytest.fixture
async def segment(master: MasterServer) -> AsyncIterator[SegmentPeer]:
    segment = SegmentPeer(master.control_port)
    await segment.attach(software_version="9.8.7")
    yield segment
    await segment.close()


@pytest.fixture
async def client(master: MasterServer) -> AsyncIterator[DirectoryPeer]:
    peer = await DirectoryPeer.greeted(master.directory_port)
    yield peer
    peer.close()


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return failure.value


# ---- the token ---------------------------------------------------------------------------------------------


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[MasterServer]:
    server = MasterServer(settings(tmp_path, token=TOKEN))
    await server.start()
    yield server
    await server.stop()


def test_there_are_methods_to_guard() -> None:
    assert {"/kvstore.v1.Control/Attach", "/kvstore.v1.Control/Heartbeat"} < METHODS.keys()
    assert {"/kvstore.v1.Admin/GetStatus", "/kvstore.v1.Admin/SetDraining"} < METHODS.keys()


async def outcome(channel: grpc.aio.Channel, path: str, metadata: Any) -> tuple[Any, str]:
    """(code, text) of a call of the method in its own form, with an empty request."""
    try:
        await _call_as_declared(channel, path, metadata)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def _call_as_declared(channel: grpc.aio.Channel, path: str, metadata: Any) -> None:
    method = METHODS[path]
    serialize = GetMessageClass(method.input_type).SerializeToString
    form = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    call = getattr(channel, form)(path, request_serializer=serialize)
    request = GetMessageClass(method.input_type)()
    answer = call(iter([request]) if method.client_streaming else request, metadata=metadata, timeout=10)
    if method.server_streaming:
        async for _ in answer:
            return
    else:
        await answer


@pytest.mark.parametrize("path", sorted(METHODS))
async def test_no_method_answers_without_the_token(guarded: MasterServer, path: str) -> None:
    wrong = (
        (),
        token_metadata("hunter3"),
        (("authorization", f"Basic {TOKEN}"),),
        (*token_metadata(TOKEN), *token_metadata(TOKEN)),
    )
    async with grpc.aio.insecure_channel(f"127.0.0.1:{guarded.control_port}") as channel:
        for metadata in wrong:
            code, text = await outcome(channel, path, metadata)
            assert code is grpc.StatusCode.UNAUTHENTICATED, metadata
            assert "token" in text
        counted = guarded.metrics.registry.get_sample_value(
            "kvstore_master_unauthorized_total", {"port": "control"}
        )
        assert counted == len(wrong)
        # With it, the method itself has the word: empty requests are refused for what they lack, if at all.
        code, _ = await outcome(channel, path, token_metadata(TOKEN))
        assert code in (
            grpc.StatusCode.OK,
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.FAILED_PRECONDITION,
        )


async def test_a_method_that_is_not_there_is_not_told_to_strangers(guarded: MasterServer) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{guarded.control_port}") as channel:
        call = channel.unary_unary("/kvstore.v1.Admin/Explode")
        assert (await refused(call(b"", timeout=10))).code() is grpc.StatusCode.UNAUTHENTICATED
        failure = await refused(call(b"", timeout=10, metadata=token_metadata(TOKEN)))
        assert failure.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_segment_with_the_token_attaches_and_beats(guarded: MasterServer) -> None:
    segment = SegmentPeer(guarded.control_port, token=TOKEN)
    await segment.attach()
    assert (await segment.heartbeat()).known
    await segment.close()


async def test_a_token_for_a_master_without_one_is_refused(master: MasterServer) -> None:
    peer = AdminPeer(master, TOKEN)
    failure = await refused(peer.status())
    assert failure.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "has no token" in (failure.details() or "")
    await peer.channel.close()


# ---- reads -------------------------------------------------------------------------------------------------


async def test_status_tells_what_a_new_store_lacks_and_then_that_it_is_well(
    master: MasterServer, admin: AdminPeer
) -> None:
    empty = await admin.status()
    assert empty.role == pb.ROLE_LEADER
    assert list(empty.problems) == ["no segment takes new pages: none serves"]
    segment = SegmentPeer(master.control_port)
    await segment.attach()
    await segment.heartbeat(used_bytes=1000, pinned_bytes=10)
    await until(lambda: master.directory.store_view.size_bytes is not None, "the store has been measured")
    status = await admin.status()
    assert list(status.problems) == []
    assert status.leader_address == f"127.0.0.1:{master.control_port}"
    assert (status.software_version, status.metadata_kind) == (__version__, "rocksdb")
    assert (status.cluster_id, status.term) == (master.directory.cluster_id, 1)
    assert status.map_epoch == master.directory.map_epoch
    assert (status.metadata_space, status.commit_backlog_bytes) == ("normal", 0)
    assert status.metadata_bytes > 0
    assert not status.HasField("lag_revisions")
    assert (status.segments.live, status.segments.suspect) == (1, 0)
    assert (status.capacity_bytes, status.used_bytes, status.pinned_bytes) == (1 << 30, 1000, 10)
    segment.call.cancel()

    async def suspect() -> bool:
        return (await admin.status()).segments.suspect == 1

    await until(suspect, "the segment is suspect")
    status = await admin.status()
    assert status.problems[0].startswith("1 segment is suspect and not served: 0 (127.0.0.1:7450)")
    assert (status.capacity_bytes, status.pinned_bytes) == (0, 0)
    await segment.close()


async def test_segments_are_listed_with_what_they_report(
    admin: AdminPeer, client: DirectoryPeer, segment: SegmentPeer
) -> None:
    ns = await client.open_namespace(model="m")
    await segment.journal(ns, fingerprints(5, 1), length=10)
    await segment.acked()
    await segment.heartbeat(
        used_bytes=1, pinned_bytes=2, quarantined_slots=3, digest_mismatches=4, evicted_objects=5
    )
    (said,) = await admin.segments()
    assert (said.index, said.segment_id, said.pool_id) == (0, segment.segment_id, segment.pool_id)
    assert (said.host, said.tcp_port, said.state) == ("127.0.0.1", 7450, SegmentState.LIVE)
    assert (said.used_bytes, said.pinned_bytes, said.quarantined_slots) == (1, 2, 3)
    assert (said.digest_mismatches, said.evicted_objects) == (4, 5)
    assert (said.object_count, said.object_bytes) == (5, 50)
    assert (said.attached, said.draining, said.software_version) == (True, False, "9.8.7")
    assert said.heard_ms < 10_000


async def test_namespaces_and_objects_are_told_and_what_is_cleared_no_more(
    admin: AdminPeer, client: DirectoryPeer, segment: SegmentPeer
) -> None:
    ns = await client.open_namespace(model="m")
    fps = fingerprints(5, 1)
    await segment.journal(ns, fps, length=10)
    await segment.acked()
    (said,) = await admin.namespaces()
    assert (said.id, said.epoch, said.name, said.identity) == (ns, 0, "test", '{"model":"m"}')
    assert (said.object_count, said.object_bytes) == (5, 50)
    found = await admin.stat(fps[:16])
    assert (found.length_bytes, list(found.segments)) == (10, [0])
    assert (await refused(admin.stat(b"x" * 16))).code() is grpc.StatusCode.NOT_FOUND
    assert (await refused(admin.stat(b"x"))).code() is grpc.StatusCode.INVALID_ARGUMENT

    cleared = await admin.clear(ns)
    assert (cleared.epoch, cleared.already_cleared) == (1, False)
    assert (cleared.object_count, cleared.object_bytes) == (5, 50)
    again = await admin.clear(ns)
    assert (again.id, again.epoch, again.already_cleared, again.object_count) == (cleared.id, 1, True, 0)
    status, _ = await client.call(Op.EXISTS, wire.ExistsRequest(ns, fps))
    assert status is Status.STALE_NAMESPACE
    assert await client.open_namespace(model="m") == cleared.id
    (said,) = await admin.namespaces()
    assert (said.id, said.epoch, said.object_count) == (cleared.id, 1, 0)
    told = await admin.status()
    assert (told.namespace_count, told.retired_object_count, told.retired_bytes) == (1, 5, 50)
    assert (await refused(admin.clear(b"nowhere!"))).code() is grpc.StatusCode.NOT_FOUND


# ---- draining ----------------------------------------------------------------------------------------------


async def place(client: DirectoryPeer, ns: bytes, seed: int) -> list[int]:
    status, fields = await client.call(Op.PLACE, wire.PlaceRequest(ns, (100,) * 20, fingerprints(20, seed)))
    assert status is Status.OK
    return list(wire.PlaceReply.decode(fields).segments)


async def test_nothing_is_placed_on_a_segment_that_drains(
    master: MasterServer, admin: AdminPeer, client: DirectoryPeer, segment: SegmentPeer
) -> None:
    ns = await client.open_namespace(model="m")
    other = SegmentPeer(master.control_port, 2)
    await other.attach()
    drained = await admin.drain(segment.segment_id)
    assert (drained.state, drained.draining, drained.attached) == (SegmentState.DRAINING, True, True)
    for seed in range(20):
        assert set(await place(client, ns, seed)) == {1}
    assert list((await admin.status()).problems) == []
    await admin.drain(other.segment_id)
    assert set(await place(client, ns, 99)) == {protocol.NO_SEGMENT}
    assert "being drained" in (await admin.status()).problems[0]
    restored = await admin.drain(segment.segment_id, False)
    assert (restored.state, restored.draining) == (SegmentState.LIVE, False)
    assert set(await place(client, ns, 100)) == {0}
    assert (await refused(admin.drain(b"x" * 16))).code() is grpc.StatusCode.NOT_FOUND
    assert (await refused(admin.drain(b"x"))).code() is grpc.StatusCode.INVALID_ARGUMENT
    await other.close()


async def test_a_master_that_starts_again_goes_on_draining(tmp_path: Path) -> None:
    server = MasterServer(settings(tmp_path))
    await server.start()
    segment = SegmentPeer(server.control_port)
    await segment.attach()
    peer = AdminPeer(server)
    await peer.drain(segment.segment_id)
    await peer.channel.close()
    await segment.close()
    await server.stop()
    server = MasterServer(settings(tmp_path))
    await server.start()
    peer = AdminPeer(server)
    (said,) = await peer.segments()
    assert (said.state, said.draining, said.attached) == (SegmentState.DRAINING, True, False)
    assert not said.HasField("heard_ms")
    await peer.channel.close()
    await server.stop()


# ---- several masters ---------------------------------------------------------------------------------------


@pytest.fixture
async def masters(tmp_path: Path) -> AsyncIterator[tuple[MasterServer, MasterServer]]:
    """A leader and its standby."""
    uri = shared_etcd().uri(own_prefix(tmp_path), ttl_s=30)
    leader, standby = (MasterServer(settings(tmp_path, metadata=uri, token=TOKEN)) for _ in range(2))
    try:
        await leader.start()
        await until(lambda: leader._readiness()[1] == "leader", "it leads")
        await standby.start()
        await until(lambda: standby._readiness() == (True, "standby"), "the other one stands by")
        yield leader, standby
    finally:
        await standby.stop()
        await leader.stop()


async def test_a_standby_answers_reads_and_says_where_changes_go(
    masters: tuple[MasterServer, MasterServer],
) -> None:
    leader, standby = masters
    there, here = AdminPeer(leader, TOKEN), AdminPeer(standby, TOKEN)
    client = await DirectoryPeer.greeted(leader.directory_port, TOKEN)
    ns = await client.open_namespace(model="m")
    segment = SegmentPeer(leader.control_port, token=TOKEN)
    await segment.attach()
    fps = fingerprints(5, 1)
    await segment.journal(ns, fps, length=10)
    await segment.acked()
    await there.drain(segment.segment_id)

    async def mirrored() -> bool:
        # The leader's map itself, which the standby watches with the token: the records alone have other epochs.
        return bool((await here.status()).map_epoch == (await there.status()).map_epoch)

    await until(mirrored, "the standby has the leader's map")
    assert [s.state for s in await here.segments()] == [SegmentState.DRAINING]

    async def known() -> bool:
        return len(await here.namespaces()) == 1 and (await here.status()).object_count == 5

    await until(known, "the standby has followed")
    status = await here.status()
    assert (status.role, status.leader_address) == (pb.ROLE_STANDBY, f"127.0.0.1:{leader.control_port}")
    assert status.HasField("lag_revisions") and status.term == 0
    assert not status.HasField("commit_backlog_bytes")
    assert list((await here.stat(fps[:16])).segments) == [0]
    assert not (await here.segments())[0].HasField("heard_ms")
    for change in (here.clear(ns), here.drain(segment.segment_id, False)):
        failure = await refused(change)
        assert failure.code() is grpc.StatusCode.UNAVAILABLE
        trailing = dict(tuple(entry) for entry in failure.trailing_metadata())
        assert trailing["kvstore-role"] == "standby"
        assert trailing["kvstore-role"] == "standby"
        assert f"127.0.0.1:{leader.control_port}" in (failure.details() or "")

    await segment.close()
    await leader.stop()
    await until(lambda: standby._readiness()[1] == "leader", "the standby leads")
    (said,) = await here.segments()
    assert (said.state, said.draining) == (SegmentState.DRAINING, True)
    assert (await here.status()).term == 2
    client.close()
    for peer in (there, here):
        await peer.channel.close()


# ---- what segments keep in memory alone --------------------------------------------------------------------


async def answer(segment: LinkedPeer, **fields: Any) -> Any:
    """Answers the next question, and says what it was."""
    message = await segment.read()
    kind = message.WhichOneof("body")
    asked = getattr(message, kind)
    if kind == "keep_objects":
        said = control_pb2.SegmentMessage(kept=control_pb2.Kept(question=asked.question, **fields))
    else:
        told = control_pb2.RetentionTold(question=asked.question, **fields)
        said = control_pb2.SegmentMessage(retention_told=told)
    await segment.call.write(said)
    return asked


async def test_a_keep_goes_to_every_segment_and_their_answers_come_back(
    master: MasterServer, admin: AdminPeer, client: DirectoryPeer
) -> None:
    ns = await client.open_namespace(model="kept")
    peers = [LinkedPeer(master.control_port, number) for number in (1, 2)]
    for number, peer in enumerate(peers):
        await peer.attach(takes_questions=True, tcp_port=7450 + number)
    fps = fingerprints(3, 5)
    request = pb.KeepObjectsRequest(id=ns, fingerprints=fps, intent=1, ttl_ms=60_000)
    call = asyncio.ensure_future(admin.stub.KeepObjects(request, timeout=10))
    for number, peer in enumerate(peers):
        asked = await answer(peer, kept=number + 1, refused=number, missing=1)
        assert (asked.namespace, asked.fingerprints, asked.intent, asked.ttl_ms) == (ns, fps, 1, 60_000)
    said = await call
    assert [(each.index, each.kept, each.refused) for each in said.segments] == [(0, 1, 0), (1, 2, 1)]
    assert not said.silent
    for peer in peers:
        await peer.close()


async def test_segments_that_take_no_questions_are_named(
    admin: AdminPeer, segment: SegmentPeer, client: DirectoryPeer
) -> None:
    ns = await client.open_namespace(model="kept")
    said = await admin.stub.KeepObjects(pb.KeepObjectsRequest(id=ns, all=True, intent=2), timeout=10)
    assert [(each.address, "keeps no intents" in each.why) for each in said.silent] == [
        ("127.0.0.1:7450", True)
    ]
    told = await admin.stub.GetRetention(pb.GetRetentionRequest(), timeout=10)
    assert len(told.silent) == 1
    assert not told.namespaces


async def test_what_segments_tell_of_a_namespace_is_added_up(
    master: MasterServer, admin: AdminPeer, client: DirectoryPeer
) -> None:
    ns = await client.open_namespace(model="kept")
    peers = [LinkedPeer(master.control_port, number) for number in (1, 2)]
    for number, peer in enumerate(peers):
        await peer.attach(takes_questions=True, tcp_port=7450 + number)
    call = asyncio.ensure_future(admin.stub.GetRetention(pb.GetRetentionRequest(), timeout=10))
    for heeded, peer in zip((True, False), peers, strict=True):
        of_ns = control_pb2.NamespaceRetention(
            id=ns, retained_bytes=100, retained_objects=1, demoted_objects=2, demotions_heeded=heeded
        )
        cleared = control_pb2.NamespaceRetention(id=bytes(8), retained_bytes=7)
        await answer(peer, namespace_bytes_max=1000, namespaces=[of_ns, cleared])
    told = await call
    assert told.namespace_bytes_max == 2000
    (own,) = told.namespaces
    assert (own.id, own.retained_bytes, own.demoted_objects, own.demotions_heeded) == (ns, 200, 4, False)
    for peer in peers:
        await peer.close()


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"intent": 1}, grpc.StatusCode.INVALID_ARGUMENT, "either fingerprints or all"),
        (
            {"all": True, "fingerprints": bytes(16)},
            grpc.StatusCode.INVALID_ARGUMENT,
            "either fingerprints or",
        ),
        ({"fingerprints": bytes(17)}, grpc.StatusCode.INVALID_ARGUMENT, "16 bytes each"),
        ({"fingerprints": bytes(16 * 65_537)}, grpc.StatusCode.INVALID_ARGUMENT, "at most 65536"),
        ({"all": True, "intent": 3}, grpc.StatusCode.INVALID_ARGUMENT, "2 .demote."),
        ({"all": True, "ttl_ms": 86_400_001}, grpc.StatusCode.INVALID_ARGUMENT, "at most 86400000"),
        ({"all": True, "id": b"short"}, grpc.StatusCode.INVALID_ARGUMENT, "id has 8 bytes"),
        ({"all": True, "id": bytes(8)}, grpc.StatusCode.NOT_FOUND, "no namespace has this id"),
    ],
)
async def test_a_keep_that_can_t_be_is_refused(
    admin: AdminPeer, client: DirectoryPeer, fields: dict[str, Any], code: grpc.StatusCode, text: str
) -> None:
    ns = await client.open_namespace(model="kept")
    error = await refused(admin.stub.KeepObjects(pb.KeepObjectsRequest(**{"id": ns, **fields}), timeout=10))
    assert error.code() is code
    assert re.search(text, error.details() or "")
