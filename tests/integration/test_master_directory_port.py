"""The directory port of a real master, over real sockets."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kvstore.common import logs
from kvstore.master.server import MasterServer
from kvstore_client import protocol
from kvstore_client.protocol import ALREADY_THERE, NO_SEGMENT, OTHER_LENGTH, Op, Status
from support import wire
from support.master_peers import DirectoryPeer, LinkedPeer, SegmentPeer, fingerprints, settings, until


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[MasterServer]:
    server = MasterServer(settings(tmp_path))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def peer(master: MasterServer) -> AsyncIterator[DirectoryPeer]:
    peer = await DirectoryPeer.greeted(master.directory_port)
    yield peer
    peer.close()


@pytest.fixture
async def segment(master: MasterServer) -> AsyncIterator[SegmentPeer]:
    segment = SegmentPeer(master.control_port)
    await segment.attach()
    yield segment
    await segment.close()


def metric(master: MasterServer, name: str, **labels: str) -> float:
    return master.metrics.registry.get_sample_value(name, labels) or 0.0


# ---- HELLO -----------------------------------------------------------------------------------------------


async def test_hello_names_version_caps_and_cluster(master: MasterServer) -> None:
    peer = await DirectoryPeer.connect(master.directory_port)
    status, fields = await peer.call(Op.HELLO, protocol.HelloRequest(protocol.Role.CLIENT))
    hello = protocol.HelloReply.decode(fields)
    assert (status, hello.version, hello.max_keys) == (Status.OK, 2, protocol.KEYS_MAX)
    assert hello.peer_id == master.directory.state.cluster_id
    same = protocol.HelloRequest(protocol.Role.CLIENT, expected_peer=hello.peer_id)
    assert (await (await DirectoryPeer.connect(master.directory_port)).call(Op.HELLO, same))[0] is Status.OK
    peer.close()


@pytest.mark.parametrize(
    ("op", "hello", "status"),
    [
        (Op.HELLO, protocol.HelloRequest(1, min_version=1, max_version=1), Status.UNSUPPORTED_VERSION),
        (Op.HELLO, protocol.HelloRequest(1, min_version=3, max_version=9), Status.UNSUPPORTED_VERSION),
        (Op.HELLO, protocol.HelloRequest(1, token="wrong"), Status.UNAUTHORIZED),
        (Op.HELLO, protocol.HelloRequest(1, expected_peer=b"x" * 16), Status.WRONG_PEER),
        (Op.HELLO, b"\x01\x01", Status.BAD_REQUEST),
        (Op.MAP, protocol.MapRequest(), Status.BAD_REQUEST),
    ],
)
async def test_a_wrong_greeting_is_answered_and_closed(
    master: MasterServer, op: Op, hello: protocol.HelloRequest | bytes, status: Status
) -> None:
    peer = await DirectoryPeer.connect(master.directory_port)
    answered, text = await peer.call(op, hello)
    assert answered is status
    assert text
    assert await peer.ended()


async def test_the_token_is_asked_for_and_refusals_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_throttle", logs.LogThrottle())
    server = MasterServer(settings(tmp_path, token="s3cret"))
    await server.start()
    try:
        for token in ("", "s3cre", "s3crets", "S3cret"):
            peer = await DirectoryPeer.connect(server.directory_port)
            assert (await peer.call(Op.HELLO, protocol.HelloRequest(1, token)))[0] is Status.UNAUTHORIZED
            assert await peer.ended()
        assert metric(server, "kvstore_master_unauthorized_total", port="directory") == 4
        # A line for each would fill the log.
        assert [record.getMessage() for record in caplog.records].count("unauthorized") == 1
        (await DirectoryPeer.greeted(server.directory_port, "s3cret")).close()
    finally:
        await server.stop()


async def test_another_frame_version_is_a_loud_typed_error(master: MasterServer) -> None:
    peer = await DirectoryPeer.connect(master.directory_port)
    peer.writer.write(protocol.request_frame(Op.HELLO, 5, protocol.HelloRequest(1).encode(), version=2))
    header, prefix, _ = await peer.receive()
    assert (header.request_id, prefix.status) == (5, Status.UNSUPPORTED_VERSION)
    assert "frame version 2" in prefix.text and "1 to 1" in prefix.text
    assert await peer.ended()
    assert metric(master, "kvstore_master_version_refusals_total", port="directory") == 1


# ---- requests ----------------------------------------------------------------------------------------------


async def test_objects_are_found_where_their_segment_said(
    master: MasterServer, peer: DirectoryPeer, segment: SegmentPeer
) -> None:
    ns = await peer.open_namespace(model="m")
    here, absent = fingerprints(5, 1), fingerprints(4, 2)
    assert await peer.exists(ns, here) == [False] * 5
    await segment.journal(ns, here, length=77)
    await segment.acked()
    assert await peer.exists(ns, here + absent) == [True] * 5 + [False] * 4
    status, fields = await peer.call(Op.LOOKUP, wire.LookupRequest(ns, here + absent, 2))
    looked = wire.LookupReply.decode(fields)
    assert status is Status.OK
    assert looked.segments == (0,) * 5 + (NO_SEGMENT,) * 13
    assert looked.lengths == (77,) * 5 + (0,) * 4
    status, fields = await peer.call(Op.PLACE, wire.PlaceRequest(ns, (10,) * 5 + (77,) * 4, absent + here))
    assert wire.PlaceReply.decode(fields).segments == (0,) * 4 + (OTHER_LENGTH,) + (ALREADY_THERE,) * 4
    (record,) = await peer.segment_map()
    assert (record.index, record.state, record.host, record.tcp_port) == (0, 1, "127.0.0.1", 7450)
    assert metric(master, "kvstore_master_requests_total", op="exists", status="ok") == 2
    assert metric(master, "kvstore_master_request_keys_total", op="exists") == 14


async def test_the_map_says_how_full_segments_are_without_a_change_of_membership(
    peer: DirectoryPeer, segment: SegmentPeer, master: MasterServer
) -> None:
    (before,) = await peer.segment_map()
    epoch = master.directory.map_epoch
    await segment.heartbeat(used_bytes=before.used_bytes + 4096)

    async def is_told() -> bool:
        return (await peer.segment_map())[0].used_bytes == before.used_bytes + 4096

    await until(is_told, "the map to say what the segment's heartbeat said")
    assert master.directory.map_epoch == epoch


async def test_without_a_segment_nothing_can_be_placed(peer: DirectoryPeer) -> None:
    ns = await peer.open_namespace(model="m")
    status, fields = await peer.call(Op.PLACE, wire.PlaceRequest(ns, (10, 20), fingerprints(2, 1)))
    assert status is Status.OK
    assert wire.PlaceReply.decode(fields).segments == (NO_SEGMENT, NO_SEGMENT)


async def test_a_bumped_namespace_is_stale_at_once_and_empty_again(
    peer: DirectoryPeer, segment: SegmentPeer
) -> None:
    ns = await peer.open_namespace(model="m")
    fps = fingerprints(3, 1)
    await segment.journal(ns, fps)
    await segment.acked()
    status, fields = await peer.call(Op.BUMP_NAMESPACE, protocol.BumpNamespaceRequest(ns))
    bumped = protocol.NamespaceReply.decode(fields)
    assert (status, bumped.epoch) == (Status.OK, 1)
    for op, message in (
        (Op.EXISTS, wire.ExistsRequest(ns, fps)),
        (Op.LOOKUP, wire.LookupRequest(ns, fps)),
        (Op.PLACE, wire.PlaceRequest(ns, (1, 2, 3), fps)),
    ):
        assert (await peer.call(op, message))[0] is Status.STALE_NAMESPACE
    assert await peer.open_namespace(model="m") == bumped.ns
    message = await segment.read()
    assert list(message.retire_namespaces.namespaces) == [ns]
    # A late bump of the old epoch is told the current one and changes nothing.
    _, fields = await peer.call(Op.BUMP_NAMESPACE, protocol.BumpNamespaceRequest(ns))
    assert protocol.NamespaceReply.decode(fields) == bumped


async def test_many_clients_that_bump_at_once_make_one_new_epoch(master: MasterServer) -> None:
    peers = [await DirectoryPeer.greeted(master.directory_port) for _ in range(8)]
    ids = await asyncio.gather(*(p.open_namespace(model="m") for p in peers))
    assert len(set(ids)) == 1
    bump = protocol.BumpNamespaceRequest(ids[0])
    replies = await asyncio.gather(*(p.call(Op.BUMP_NAMESPACE, bump) for p in peers))
    assert {protocol.NamespaceReply.decode(fields).epoch for _, fields in replies} == {1}
    for p in peers:
        p.close()


async def test_pipelined_requests_are_answered_in_order(peer: DirectoryPeer, segment: SegmentPeer) -> None:
    ns = await peer.open_namespace(model="m")
    fps = fingerprints(40, 1)
    await segment.journal(ns, fps)
    await segment.acked()
    sent = []
    for i in range(200):
        if i % 50 == 7:  # waits for the store
            identity = b'{"model":"other%d"}' % i
            sent.append((peer.send(Op.OPEN_NAMESPACE, protocol.OpenNamespaceRequest(identity).encode()), 0))
        else:
            count = i % 40 + 1
            sent.append((peer.send(Op.EXISTS, wire.ExistsRequest(ns, fps[: 16 * count]).encode()), count))
    for number, count in sent:
        header, prefix, fields = await peer.receive()
        assert (header.request_id, prefix.status) == (number, Status.OK)
        if count:
            assert wire.ExistsReply.decode(fields).present == (True,) * count


async def test_frames_in_pieces_of_any_size_are_put_together(peer: DirectoryPeer) -> None:
    ns = await peer.open_namespace(model="m")
    frame = protocol.request_frame(Op.EXISTS, 9, wire.ExistsRequest(ns, fingerprints(30, 1)).encode())
    rng = random.Random(4)
    for _ in range(5):
        at = 0
        while at < len(frame):
            step = rng.randint(1, 60)
            peer.writer.write(frame[at : at + step])
            await peer.writer.drain()
            await asyncio.sleep(0)
            at += step
        assert (await peer.receive())[1].status is Status.OK


async def test_the_largest_batch_is_answered_and_a_larger_one_refused(peer: DirectoryPeer) -> None:
    ns = await peer.open_namespace(model="m")
    assert await peer.exists(ns, bytes(16 * protocol.ENTRIES_MAX)) == [False] * protocol.ENTRIES_MAX
    over = ns + struct.pack("<II", protocol.ENTRIES_MAX + 1, 0) + bytes(16 * (protocol.ENTRIES_MAX + 1))
    assert (await peer.call(Op.EXISTS, over))[0] is Status.TOO_LARGE
    long = wire.PlaceRequest(ns, (protocol.OBJECT_BYTES_MAX + 1,), bytes(16)).encode()
    assert (await peer.call(Op.PLACE, long))[0] is Status.TOO_LARGE
    assert await peer.exists(ns, bytes(16)) == [False]


async def test_malformed_requests_are_refused_and_the_connection_lives_on(peer: DirectoryPeer) -> None:
    ns = await peer.open_namespace(model="m")
    for op, body in (
        (Op.EXISTS, b""),
        (Op.EXISTS, ns + struct.pack("<II", 3, 0) + bytes(47)),
        (Op.LOOKUP, ns + struct.pack("<IB3x", 1, 0) + bytes(16)),
        (Op.LOOKUP, ns + struct.pack("<IB3x", 1, 5) + bytes(16)),
        (Op.PLACE, ns + struct.pack("<II", 2, 0) + bytes(39)),
        (Op.MAP, b"1234567"),
        (Op.BUMP_NAMESPACE, b"1234567"),
        (Op.OPEN_NAMESPACE, b""),
        (Op.OPEN_NAMESPACE, protocol.OpenNamespaceRequest(b'{"b": 1}').encode()),
        (Op.GET, b""),
        (Op.HELLO, protocol.HelloRequest(1).encode()),
        (99, b""),
    ):
        status, text = await peer.call(op, body)
        assert status is Status.BAD_REQUEST, (op, body)
        assert text
    assert await peer.exists(ns, bytes(16)) == [False]


@pytest.mark.parametrize(
    "frame",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        protocol.Header(Op.EXISTS, 1, protocol.BODY_BYTES_MAX + 1).encode(),
        protocol.Header(Op.EXISTS, 1, 0, 1).encode(),
        protocol.Header(Op.EXISTS, 1, 0, 0, protocol.FLAG_REPLY).encode(),
    ],
    ids=["http", "body over cap", "payload", "reply flag"],
)
async def test_a_malformed_header_closes_the_connection_and_is_counted(
    master: MasterServer, peer: DirectoryPeer, frame: bytes
) -> None:
    peer.writer.write(frame)
    assert await peer.ended()
    assert metric(master, "kvstore_master_bad_frames_total") == 1
    (await DirectoryPeer.greeted(master.directory_port)).close()


async def test_a_large_body_is_not_taken_before_the_greeting(master: MasterServer) -> None:
    peer = await DirectoryPeer.connect(master.directory_port)
    peer.writer.write(protocol.Header(Op.HELLO, 1, 1 << 20).encode())
    assert await peer.ended()


async def test_a_client_that_does_not_read_is_not_answered_into_memory(
    master: MasterServer, peer: DirectoryPeer
) -> None:
    ns = await peer.open_namespace(model="m")
    request = protocol.request_frame(Op.LOOKUP, 1, wire.LookupRequest(ns, bytes(16 * 20_000), 4).encode())
    (connection,) = master._port.connections  # type: ignore[union-attr]
    reply_bytes = 20_000 * 20
    for _ in range(60):
        peer.writer.write(request)
    await until(lambda: connection._write_paused, "the master stops reading")
    assert connection._transport.get_write_buffer_size() < (1 << 20) + 2 * reply_bytes
    for _ in range(60):
        assert (await peer.receive())[1].status is Status.OK


async def test_connections_over_the_limit_are_refused_and_counted_but_for_those_of_segments(
    tmp_path: Path,
) -> None:
    server = MasterServer(settings(tmp_path, connections_max=2))
    await server.start()
    try:
        peers = [await DirectoryPeer.greeted(server.directory_port) for _ in range(2)]
        third = await DirectoryPeer.connect(server.directory_port)
        status, text = await third.call(Op.HELLO, protocol.HelloRequest(protocol.Role.CLIENT))
        assert status is Status.UNAVAILABLE and b"connections_max" in text
        assert await third.ended()
        assert metric(server, "kvstore_master_refused_connections_total") == 1
        segment = LinkedPeer(server.control_port)
        await segment.attach()
        assert (await segment.heartbeat()).known
        await segment.close()
        peers[0].close()
        await until(lambda: metric(server, "kvstore_master_connections") == 1, "the place is free again")
        (await DirectoryPeer.greeted(server.directory_port)).close()
        peers[1].close()
    finally:
        await server.stop()


async def test_a_client_that_leaves_while_it_waits_hurts_nobody(master: MasterServer) -> None:
    for i in range(20):
        gone = await DirectoryPeer.greeted(master.directory_port)
        gone.send(Op.OPEN_NAMESPACE, protocol.OpenNamespaceRequest(b'{"n":%d}' % i).encode())
        await gone.writer.drain()
        gone.writer.transport.abort()
    peer = await DirectoryPeer.greeted(master.directory_port)
    await peer.open_namespace(model="m")
    await until(lambda: metric(master, "kvstore_master_connections") == 1, "the others are gone")
    peer.close()


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=64),
            st.builds(
                lambda op, body: protocol.request_frame(op, 1, body),
                st.sampled_from([*Op, 0, 255]),
                st.binary(max_size=120),
            ),
            st.builds(
                lambda frame, at, byte: (
                    frame[: at % len(frame)] + bytes([byte]) + frame[at % len(frame) + 1 :]
                ),
                st.just(protocol.request_frame(Op.EXISTS, 1, bytes(8) + b"\x02" + bytes(39))),
                st.integers(0, 100),
                st.integers(0, 255),
            ),
        ),
        max_size=6,
    )
)
@hypothesis_settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_no_bytes_harm_the_master(fuzzed: MasterServer, chunks: list[bytes]) -> None:
    peer = await DirectoryPeer.greeted(fuzzed.directory_port)
    for chunk in chunks:
        peer.writer.write(chunk)
    peer.writer.write_eof()
    assert await peer.ended()
    peer.close()
    well = await DirectoryPeer.greeted(fuzzed.directory_port)
    await well.segment_map()
    well.close()
    assert metric(fuzzed, "kvstore_master_requests_total", op="exists", status="internal") == 0


@pytest.fixture
async def fuzzed(tmp_path: Path) -> AsyncIterator[MasterServer]:
    server = MasterServer(settings(tmp_path, metadata="memory:"))
    await server.start()
    yield server
    await server.stop()
