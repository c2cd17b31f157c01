"""What the release before this one has left is opened, and its peers are answered, by the software of now."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest
from kvstore.v1 import admin_pb2 as admin_pb
from kvstore.v1 import admin_pb2_grpc

from kvstore.segment.identity import SegmentIdentity
from kvstore_client import protocol
from kvstore_client.protocol import HEADER_BYTES, Header, Op, Status
from support import wire
from support.earlier_release import RELEASES, EarlierRelease
from support.etcd_server import own_prefix, shared_etcd
from support.master_peers import DirectoryPeer, SegmentPeer
from support.processes import Cluster
from support.replicated_cluster import Master
from support.running_cluster import running_cluster
from support.waiting import wait_until


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> EarlierRelease:
    return EarlierRelease(request.param)


@dataclass
class Store:
    """A store that the release has left, and how a master is started on it."""

    metadata: str
    directory: Path

    def start(self) -> Master:
        """One that leads."""
        master = Master("master", self.directory, self.metadata)
        master.start()
        master.wait_listening()
        wait_until(lambda: master.readiness() in ("leader", "ready"), "the master leads", 15)
        return master


@pytest.fixture(params=["rocksdb", "etcd"])
def store(request: pytest.FixtureRequest, release: EarlierRelease, tmp_path: Path) -> Iterator[Store]:
    if request.param == "rocksdb":
        release.put_rocksdb(tmp_path / "metadata")
        yield Store(f"rocksdb://{tmp_path}/metadata", tmp_path)
    else:
        etcd, prefix = shared_etcd(), own_prefix(tmp_path)
        release.put_etcd(etcd.members[0], prefix)
        yield Store(etcd.uri(prefix), tmp_path)


def test_there_are_fixtures_of_a_release() -> None:
    assert RELEASES


async def check_content(port: int, release: EarlierRelease) -> None:
    peer = await DirectoryPeer.greeted(port)
    for namespace in release.content["namespaces"]:
        *past, current = map(bytes.fromhex, namespace["ids"])
        assert await peer.open_namespace(model=namespace["name"]) == current
        for ended in past:
            status, _ = await peer.call(Op.EXISTS, wire.ExistsRequest(ended, bytes(16)))
            assert status is Status.STALE_NAMESPACE
        for index, fingerprints in release.content["pages"][current.hex()].items():
            fps = bytes.fromhex(fingerprints)
            status, fields = await peer.call(Op.LOOKUP, wire.LookupRequest(current, fps))
            found = wire.LookupReply.decode(fields)
            assert set(found.segments) == {int(index)}
            assert set(found.lengths) == {release.content["lengths"][current.hex()]}
            assert all(await peer.exists(current, fps))
    kept = bytes.fromhex(release.content["namespaces"][0]["ids"][-1])
    gone = release.content["removed"] + release.content["lost"]["fingerprints"]
    assert not any(await peer.exists(kept, bytes.fromhex(gone)))
    peer.close()


async def test_every_page_that_the_release_has_stored_is_found(store: Store, release: EarlierRelease) -> None:
    for life in range(2):  # the second reads what the first has put right
        master = store.start()
        try:
            await check_content(master.directory_port, release)
            if life == 1:
                await check_segments(master.control_port, release)
        finally:
            assert master.process.stop() == 0
            master.process.close()


async def check_segments(control_port: int, release: EarlierRelease) -> None:
    """They resume where their log ends; one with a damaged record is asked for all that it holds."""
    lost = release.content["lost"]
    for index, known in enumerate(release.content["segments"]):
        segment = SegmentPeer(control_port, index + 1)
        segment.last_seq, segment.oldest_kept_seq = known["last_seq"], 1
        registered = await segment.attach(tcp_port=known["tcp_port"])
        hurt = index == lost["segment"]
        durable = lost["first_seq"] - 1 if hurt else known["last_seq"]
        assert registered.segment_index == index
        assert (registered.durable_seq, registered.need_inventory) == (durable, hurt)
        await segment.close()


async def test_a_client_of_the_release_is_answered_by_a_master(
    release: EarlierRelease, tmp_path: Path
) -> None:
    release.put_rocksdb(tmp_path / "master")
    cluster = Cluster(tmp_path)
    try:
        ports = cluster.start_master().wait_event("listening")
        segment = await attached(release, 1, ports["control_port"])
        other = SegmentPeer(ports["control_port"], 2)
        peer = await DirectoryPeer.connect(ports["directory_port"])
        for exchange in release.to_master:
            if exchange.name == "PLACE":
                # Only what a segment that is heard holds is already there, and new pages had one segment to go to then.
                other = await attached(release, 2, ports["control_port"])
                await drain(other, ports["control_port"])
            peer.writer.write(exchange.request)
            head = await asyncio.wait_for(peer.reader.readexactly(HEADER_BYTES), 10)
            body = await asyncio.wait_for(peer.reader.readexactly(Header.decode(head).body_bytes), 10)
            assert not exchange.fault(head + body)
        peer.close()
        await segment.close()
        await other.close()
    finally:
        cluster.close()


async def attached(release: EarlierRelease, number: int, control_port: int) -> SegmentPeer:
    known = release.content["segments"][number - 1]
    segment = SegmentPeer(control_port, number)
    segment.last_seq = known["last_seq"]
    await segment.attach(tcp_port=known["tcp_port"])
    await segment.heartbeat()
    return segment


async def drain(segment: SegmentPeer, control_port: int) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{control_port}") as channel:
        request = admin_pb.SetDrainingRequest(segment_id=segment.segment_id, draining=True)
        await admin_pb2_grpc.AdminStub(channel).SetDraining(request, timeout=10)


def test_a_client_of_the_release_is_answered_by_a_segment(release: EarlierRelease, tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        asyncio.run(open_namespace(cluster.master_ports["directory_port"], release))
        port = cluster.segments["segment"].wait_event("listening")["port"]
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            for exchange in release.to_segment:
                connection.sendall(exchange.request)
                head = receive(connection, HEADER_BYTES)
                header = Header.decode(head)
                assert not exchange.fault(
                    head + receive(connection, header.body_bytes + header.payload_bytes)
                )


async def open_namespace(port: int, release: EarlierRelease) -> None:
    peer = await DirectoryPeer.greeted(port)
    await peer.open_namespace(**json.loads(release.segment_identity))
    peer.close()


def receive(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        assert part, "the segment closed the connection"
        parts += part
    return bytes(parts)


@pytest.mark.parametrize("at", [HEADER_BYTES, HEADER_BYTES + 16, -1])
def test_a_changed_byte_of_a_reply_is_seen(release: EarlierRelease, at: int) -> None:
    exchange = next(each for each in release.to_segment if each.name == "GET")
    changed = bytearray(exchange.reply)
    changed[at] ^= 1
    assert exchange.fault(bytes(changed))
    assert not exchange.fault(exchange.reply)


def test_a_segment_of_the_release_keeps_its_identity(release: EarlierRelease, tmp_path: Path) -> None:
    stored = (release.directory / "segment_id").read_bytes()
    (tmp_path / "segment_id").write_bytes(stored)
    with SegmentIdentity(tmp_path) as identity:
        assert identity.segment_id == bytes.fromhex(stored.decode())
    assert (tmp_path / "segment_id").read_bytes() == stored


def test_all_of_it_is_small() -> None:
    assert protocol.VERSION_MIN <= 2 <= protocol.VERSION_MAX
    for name in RELEASES:
        assert sum(path.stat().st_size for path in EarlierRelease(name).directory.iterdir()) < 300_000
