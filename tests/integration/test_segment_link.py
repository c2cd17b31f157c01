"""The links of a real master: what belongs together ends together, and what a segment should not say hurts nobody else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from kvstore.v1 import control_pb2 as pb

from kvstore.common.control_metadata import refusing_cluster
from kvstore.common.errors import StoreError
from kvstore.master import committer
from kvstore.master.ports import segment_link
from kvstore.master.server import MasterServer
from kvstore_client import protocol
from kvstore_client.protocol import HEADER_BYTES, Op, SegmentState, Status
from kvstore_client.protocol.journal import JournalGroup, JournalOp, encode_groups
from kvstore_client.protocol.link import (
    LINK_MESSAGES_UNTAKEN_MAX,
    AckMessage,
    EntriesRefusedMessage,
    HeartbeatMessage,
    InventoryMessage,
    JournalMessage,
    LinkRequest,
)
from support.master_peers import DirectoryPeer, LinkedPeer, SegmentPeer, fingerprints, settings, until

BEAT = HeartbeatMessage(0, 0)
TOO_LONG = (1 << 30) + 1


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[MasterServer]:
    server = MasterServer(settings(tmp_path, grace_s=60.0))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def peer(master: MasterServer) -> AsyncIterator[DirectoryPeer]:
    peer = await DirectoryPeer.greeted(master.directory_port)
    yield peer
    peer.close()


@pytest.fixture
async def segment(master: MasterServer) -> AsyncIterator[LinkedPeer]:
    segment = LinkedPeer(master.control_port)
    yield segment
    await segment.close()


def add(ns: bytes, fps: bytes, length: int = 100) -> bytes:
    return encode_groups([JournalGroup(JournalOp.ADD, ns, fps, (length,) * (len(fps) // 16))])


# ---- session and link ----------------------------------------------------------------------------------------


async def test_a_segment_of_the_previous_release_is_served_as_ever(
    master: MasterServer, peer: DirectoryPeer
) -> None:
    ns = await peer.open_namespace(model="m")
    old = SegmentPeer(master.control_port)
    registered = await old.attach()
    assert (registered.link_port, registered.link_token) == (0, b"")
    fps = fingerprints(100, 1)
    await old.journal(ns, fps)
    await old.acked()
    assert await peer.exists(ns, fps) == [True] * 100
    assert (await old.heartbeat(used_bytes=555)).known
    assert [(s.state, s.used_bytes) for s in await peer.segment_map()] == [(SegmentState.LIVE, 555)]
    old.last_seq += 1  # lost
    await old.journal(ns, fps[:16])
    await old.asked_for_inventory()
    await old.send_chunk(old.last_seq, add(ns, fps[16:]), first=True, last=True)
    await old.acked()
    assert await peer.exists(ns, fps) == [False] + [True] * 99
    await old.close()


async def test_the_journal_of_a_segment_that_makes_a_link_is_not_taken_from_its_stream(
    master: MasterServer, segment: LinkedPeer
) -> None:
    await segment.attach()
    await SegmentPeer.send_batch(segment, 1, 1, add(bytes(8), bytes(16)))
    failure = await segment.failure()
    assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT and "link" in (failure.details() or "")


async def test_a_lost_link_ends_the_session(master: MasterServer, segment: LinkedPeer) -> None:
    await segment.attach()
    assert segment.link is not None
    segment.link.close()
    failure = await segment.failure()
    assert failure.code() is grpc.StatusCode.UNAVAILABLE and "link was lost" in (failure.details() or "")
    known = master.directory.state.segments.get(segment.segment_id)
    assert known is not None and known.session is None


async def test_a_lost_stream_ends_the_link(master: MasterServer, segment: LinkedPeer) -> None:
    await segment.attach()
    assert segment.link is not None
    segment.call.cancel()
    assert await segment.link.ended()


async def test_a_goodbye_ends_the_link(master: MasterServer, segment: LinkedPeer) -> None:
    await segment.attach()
    assert segment.link is not None
    await segment.call.write(pb.SegmentMessage(leaving=pb.Leaving(reason="scaled in")))
    await segment.call.done_writing()
    assert await segment.link.ended()
    assert await segment.read() is grpc.aio.EOF


async def test_a_second_stream_of_a_segment_ends_the_link_of_the_first(
    master: MasterServer, peer: DirectoryPeer, segment: LinkedPeer
) -> None:
    ns = await peer.open_namespace(model="m")
    await segment.attach()
    second = LinkedPeer(master.control_port)
    await second.attach()
    assert segment.link is not None and await segment.link.ended()
    await second.journal(ns, fingerprints(3, 1))
    await second.acked()
    await second.close()


async def test_a_session_without_its_link_is_ended_and_says_why(
    master: MasterServer, segment: LinkedPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_link, "LINK_TIMEOUT_S", 0.2)
    await segment.attach(link=False)
    failure = await segment.failure()
    assert failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "directory port" in (failure.details() or "")


async def test_a_token_is_good_for_one_link_of_a_session_that_is_not_over(
    master: MasterServer, segment: LinkedPeer
) -> None:
    registered = await segment.attach()
    for token in (registered.link_token, bytes(16), b"\xff" * 16):
        thief = await segment.greeted(registered.link_port)
        status, text = await thief.call(Op.LINK, LinkRequest(token))
        assert status is Status.UNAUTHORIZED and b"register again" in text
        assert await thief.ended()
    assert (await segment.heartbeat()).known, "the link of the session is as it was"
    late = LinkedPeer(master.control_port, 2)
    registered = await late.attach(link=False)
    late.call.cancel()
    await until(lambda: _session_of(master, late) is None, "the session is over")
    connection = await late.greeted(registered.link_port)
    status, _ = await connection.call(Op.LINK, LinkRequest(registered.link_token))
    assert status is Status.UNAUTHORIZED
    assert await connection.ended()
    await late.close()


def _session_of(master: MasterServer, segment: SegmentPeer) -> int | None:
    known = master.directory.state.segments.get(segment.segment_id)
    return known.session if known is not None else None


async def test_a_segment_whose_pages_belong_to_another_cluster_is_refused_before_anybody_finds_it(
    master: MasterServer, peer: DirectoryPeer, segment: LinkedPeer
) -> None:
    segment.call = segment.stub.Attach()
    await segment.call.write(pb.SegmentMessage(register=segment.register(expected_cluster_id=b"x" * 16)))
    failure = await segment.failure()
    assert failure.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert refusing_cluster(failure.trailing_metadata()) == master.directory.cluster_id.hex()
    assert await peer.segment_map() == ()
    await segment.attach(expected_cluster_id=master.directory.cluster_id)


async def test_an_inventory_that_is_asked_for_before_the_link_is_there_is_asked_for_on_it(
    master: MasterServer, segment: LinkedPeer
) -> None:
    registered = await segment.attach(link=False)
    number = _session_of(master, segment)
    assert number is not None
    master.directory._sessions[number].request_inventory()
    segment.link = await segment.greeted(registered.link_port)
    assert (await segment.link.call(Op.LINK, LinkRequest(registered.link_token)))[0] is Status.OK
    await segment.asked_for_inventory()


# ---- acks ----------------------------------------------------------------------------------------------------


async def test_acks_say_what_is_durable_and_how_much_was_taken_in_few_frames(
    master: MasterServer, peer: DirectoryPeer, segment: LinkedPeer
) -> None:
    ns = await peer.open_namespace(model="m")
    await segment.attach()
    fps = fingerprints(8, 1)
    for i in range(8):
        await segment.journal(ns, fps[16 * i : 16 * i + 16])
    acks = []
    while not acks or acks[-1].durable_seq < 8:
        op, body = await segment.notice()
        assert op == Op.ACK
        acks.append(AckMessage.decode(body))
    assert acks[-1] == AckMessage(8, 8)
    assert len(acks) <= 8 and acks == sorted(acks, key=lambda a: (a.durable_seq, a.taken))
    assert await peer.exists(ns, fps) == [True] * 8


async def test_each_part_of_an_inventory_is_confirmed_as_taken(
    master: MasterServer, peer: DirectoryPeer, segment: LinkedPeer
) -> None:
    ns = await peer.open_namespace(model="m")
    await segment.attach()
    fps = fingerprints(3, 1)
    for i in range(3):
        await segment.send_chunk(7, add(ns, fps[16 * i : 16 * i + 16]), first=i == 0, last=i == 2)
        while segment.taken <= i:
            op, body = await segment.notice()
            assert op == Op.ACK
            segment.taken = AckMessage.decode(body).taken
    await segment.acked(7)
    assert await peer.exists(ns, fps) == [True] * 3


async def test_refused_entries_are_told_by_the_link(
    master: MasterServer, peer: DirectoryPeer, segment: LinkedPeer
) -> None:
    ns = await peer.open_namespace(model="m")
    await segment.attach()
    await segment.journal(ns, fingerprints(2, 1), length=TOO_LONG)
    op, body = await segment.notice()
    assert op == Op.ENTRIES_REFUSED
    refused = EntriesRefusedMessage.decode(body)
    assert (refused.last_seq, refused.entries) == (2, 2) and refused.reason


async def test_while_the_store_is_behind_heartbeats_are_heard_and_nothing_is_lost_or_reordered(
    master: MasterServer, peer: DirectoryPeer, segment: LinkedPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ns = await peer.open_namespace(model="m")
    await segment.attach()
    assert segment.link is not None
    for module in (committer, segment_link):
        monkeypatch.setattr(module, "BACKLOG_BYTES_MAX", 0)
    held, commit = asyncio.Event(), master._store.commit_together

    async def wait_and_commit(*arguments: object) -> None:
        await held.wait()
        await commit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(master._store, "commit_together", wait_and_commit)
    fps = fingerprints(LINK_MESSAGES_UNTAKEN_MAX, 1)
    for i in range(LINK_MESSAGES_UNTAKEN_MAX):
        await segment.journal(ns, fps[16 * i : 16 * i + 16])
    # The answer comes behind all of them, and is no acknowledgement.
    for _ in range(3):
        assert (await segment.heartbeat(used_bytes=77)).known
    assert (await peer.segment_map())[0].used_bytes == 77
    assert master.directory.state.segments.get(segment.segment_id).accepted_seq < 8  # type: ignore[union-attr]
    held.set()
    await segment.acked()
    assert await peer.exists(ns, fps) == [True] * LINK_MESSAGES_UNTAKEN_MAX
    assert master.metrics.registry.get_sample_value(
        "kvstore_master_events_total", {"event": "journal_gap"}
    ) in (None, 0.0)


async def test_more_than_may_be_on_its_way_ends_the_session(
    master: MasterServer, peer: DirectoryPeer, segment: LinkedPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ns = await peer.open_namespace(model="m")
    await segment.attach()
    for module in (committer, segment_link):
        monkeypatch.setattr(module, "BACKLOG_BYTES_MAX", 0)

    async def fail(*_: object) -> None:
        raise StoreError("away")

    commit = master._store.commit_together
    monkeypatch.setattr(master._store, "commit_together", fail)
    fps = fingerprints(LINK_MESSAGES_UNTAKEN_MAX + 2, 1)
    for i in range(LINK_MESSAGES_UNTAKEN_MAX + 2):
        await segment.journal(ns, fps[16 * i : 16 * i + 16])
    failure = await segment.failure()
    assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"{LINK_MESSAGES_UNTAKEN_MAX} messages" in (failure.details() or "")
    monkeypatch.setattr(master._store, "commit_together", commit)


# ---- what should not be said -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [JournalMessage(1, 1, b""), InventoryMessage(1, b"", True, True), BEAT],
    ids=["journal", "inventory", "heartbeat"],
)
async def test_before_link_nothing_else_is_taken(
    master: MasterServer, segment: LinkedPeer, message: JournalMessage | InventoryMessage | HeartbeatMessage
) -> None:
    registered = await segment.attach(link=False)
    op = {JournalMessage: Op.JOURNAL, InventoryMessage: Op.INVENTORY, HeartbeatMessage: Op.HEARTBEAT}
    connection = await segment.greeted(registered.link_port)
    status, text = await connection.call(op[type(message)], message)
    assert status is Status.BAD_REQUEST and b"LINK" in text
    assert await connection.ended()


@pytest.mark.parametrize("op", [Op.LINK, Op.JOURNAL, Op.INVENTORY, Op.HEARTBEAT])
async def test_an_engine_makes_no_link(master: MasterServer, peer: DirectoryPeer, op: Op) -> None:
    status, text = await peer.call(op, bytes(100))
    assert status is Status.BAD_REQUEST and b"none of the directory port's" in text
    assert await peer.segment_map() == (), "the connection goes on"


async def test_a_message_cut_short_ends_its_session_and_no_other(
    master: MasterServer, peer: DirectoryPeer, segment: LinkedPeer
) -> None:
    ns = await peer.open_namespace(model="m")
    other = LinkedPeer(master.control_port, 2)
    await other.attach()
    journal = JournalMessage(1, 1, add(ns, fingerprints(1, 1))).encode()
    chunk = InventoryMessage(1, add(ns, fingerprints(1, 1)), True, True).encode()
    bad = [
        (Op.JOURNAL, journal[:-1]),
        (Op.JOURNAL, journal[:10]),
        (Op.JOURNAL, b""),
        (Op.JOURNAL, JournalMessage(1, 2, add(ns, fingerprints(1, 1))).encode()),  # counts two
        (Op.JOURNAL, JournalMessage(1, 1, b"junk" * 9).encode()),
        (Op.INVENTORY, chunk[:-1]),
        (Op.INVENTORY, chunk[:8]),
        (Op.INVENTORY, InventoryMessage(1, b"junk" * 9, True, True).encode()),
        (Op.INVENTORY, InventoryMessage(1, b"", False, True).encode()),  # the middle of none
        (Op.HEARTBEAT, BEAT.encode()[:-1]),
        (Op.JOURNAL, journal + bytes(1 << 20)),  # over the cap of a link
        (Op.LINK, b"short"),
        (Op.LINK, bytes(16)),  # a second one
    ]
    for op, body in bad:
        await segment.attach()
        assert segment.link is not None
        segment.link.send(op, body)
        failure = await segment.failure()
        assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT, (op, body, failure.details())
        assert await segment.link.ended()
    assert master.directory.state.index.entry_count == 0
    await other.journal(ns, fingerprints(3, 2))
    await other.acked()
    assert (await other.heartbeat()).known
    await other.close()


async def test_an_op_that_the_master_does_not_know_is_refused_and_the_link_goes_on(
    master: MasterServer, segment: LinkedPeer
) -> None:
    await segment.attach()
    assert segment.link is not None
    status, _ = await segment.link.call(99, b"from a later release")
    assert status is Status.BAD_REQUEST
    assert (await segment.heartbeat()).known


async def test_whatever_comes_on_links_others_are_served_and_nothing_false_is_found(
    master: MasterServer, peer: DirectoryPeer
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    ns = await peer.open_namespace(model="m")
    good = LinkedPeer(master.control_port, 1)
    await good.attach()
    fps = fingerprints(20, 5)
    await good.journal(ns, fps)
    await good.acked()
    wild = LinkedPeer(master.control_port, 2)
    for _ in range(40):
        wild.last_seq = rng.choice((0, 5))
        await wild.attach()
        assert wild.link is not None
        for _ in range(rng.randint(1, 6)):
            body = rng.choice(
                (
                    JournalMessage(rng.randint(0, 3), rng.randint(0, 4), add(ns, fps[:32])).encode(),
                    InventoryMessage(
                        rng.choice((0, 9, 1 << 63)), add(ns, fps), bool(rng.randint(0, 1)), True
                    ).encode(),
                    rng.randbytes(rng.randint(0, 80)),
                )
            )
            frame = bytearray(
                protocol.request_frame(rng.choice((Op.JOURNAL, Op.INVENTORY, Op.HEARTBEAT)), 1, body)
            )
            if rng.random() < 0.4:
                frame[rng.randrange(HEADER_BYTES, len(frame)) if len(frame) > HEADER_BYTES else 5] ^= 0xFF
            if rng.random() < 0.1:
                frame[rng.randrange(HEADER_BYTES)] ^= 1 << rng.randrange(8)
            wild.link.writer.write(bytes(frame))
        wild.call.cancel()
        wild.link.close()
        assert await peer.exists(ns, fps) == [True] * 20
        assert (await good.heartbeat()).known
    await wild.close()
    await good.close()
