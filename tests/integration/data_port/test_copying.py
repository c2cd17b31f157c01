"""Objects that one segment fetches from another: whole, checked, journalled as any put, and nothing of what it must not evict."""

import hashlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from kvstore_client import _native

from .peer import (
    CONFLICT,
    DIGEST_MISMATCH,
    EXISTS,
    MIB,
    MISS,
    NO_SPACE,
    NOT_COMMITTED,
    NS,
    OK,
    UNAVAILABLE,
    WHOLE,
    Peer,
    hashes,
    key_block,
    values,
    wait_until,
)

FETCH = 31
SOURCE_POOL, TARGET_POOL = b"pool of a source", b"pool of a target"


def fingerprint(page_hash: bytes, pool: int = 0, shard: bytes = WHOLE, ns: bytes = NS) -> bytes:
    """As docs/protocol.md section 3 has it."""
    words = 2**64 - 1

    def mix(x: int) -> int:
        x = (x ^ x >> 33) * 0xFF51AFD7ED558CCD & words
        x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53 & words
        return x ^ x >> 33

    w0, w1, w2, w3 = struct.unpack("<4Q", page_hash)
    a = mix((w2 + mix(w3)) & words)
    b = w1 ^ mix((w3 + a) & words)
    folded = struct.pack("<QQ", mix(w0 ^ a ^ mix(b)), b)
    salt = hashlib.sha256(b"kvstore/fingerprint/v2\0" + ns + struct.pack("<H", pool) + shard).digest()
    return bytes(x ^ y for x, y in zip(folded, salt, strict=False))


class Segment:
    """A store, its data port, and a master that confirms the journal while `confirms`."""

    def __init__(self, pool_id: bytes, capacity_bytes: int = 16 * MIB, **options: object) -> None:
        self.store = _native.SegmentStore(capacity_bytes=capacity_bytes, pool_id=pool_id, **options)  # type: ignore[arg-type]
        self.server = _native.DataServer(self.store, tcp_host="127.0.0.1")
        self.copier = _native.ObjectCopier(self.store)
        self.pool_id = pool_id
        self.confirms = True
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._confirm)
        self._thread.start()

    def _confirm(self) -> None:
        while not self._stopping.wait(0.002):
            batch = self.store.journal_drain(1000) if self.confirms else None
            if batch is not None:
                self.store.journal_ack(batch[1])

    def peer(self) -> Peer:
        return Peer(("127.0.0.1", self.server.tcp_port))

    def copy(
        self, source: "Segment", fingerprints: list[bytes], **options: object
    ) -> tuple[list[int], int, str]:
        statuses, copied_bytes, trouble = self.copier.copy(
            options.pop("cancellation", None) or _native.CopyCancellation(),  # type: ignore[arg-type]
            **{  # type: ignore[arg-type]
                "host": "127.0.0.1",
                "port": source.server.tcp_port,
                "unix_path": "",
                "pool_id": source.pool_id,
                "ns": NS,
                "fingerprints": b"".join(fingerprints),
                **options,
            },
        )
        return list(statuses), copied_bytes, trouble

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self.server.stop()
        self.store.close()


@pytest.fixture
def source() -> Iterator[Segment]:
    segment = Segment(SOURCE_POOL)
    yield segment
    segment.close()


@pytest.fixture
def target() -> Iterator[Segment]:
    segment = Segment(TARGET_POOL)
    yield segment
    segment.close()


def test_what_is_copied_is_the_whole_object_and_its_directory_entry_is_durable(
    source: Segment, target: Segment
) -> None:
    keys, data = hashes(*map(str, range(700))), values(700, 9000)
    shards = struct.pack("<6H", 0, 4, 0, 1, 0, 1)
    with source.peer() as peer:
        assert peer.put(keys, data).statuses == [OK] * 700
    asked = [fingerprint(key) for key in keys] + [fingerprint(keys[0], shard=shards)]
    statuses, copied_bytes, trouble = target.copy(source, asked)
    assert (statuses, trouble) == ([OK] * 700 + [MISS], "")
    assert copied_bytes == sum(map(len, data))
    with target.peer() as peer:
        assert peer.get(keys) == [(OK, value) for value in data]
    assert target.store.stats()["journal_backlog"] == 0, "it was answered before its commit"
    assert target.store.stats()["copied_in"] == source.store.stats()["copied_out"] == 700
    # Again: nothing is fetched.
    assert target.copy(source, asked[:-1])[:2] == ([EXISTS] * 700, 0)
    assert source.store.stats()["copied_out"] == 700


def test_depths_texts_and_shards_come_along(source: Segment, target: Segment) -> None:
    key = hashlib.sha256(b"kvstore/string/v1\0name").digest()
    shards = struct.pack("<6H", 0, 4, 0, 1, 0, 1) + struct.pack("<6H", 4, 4, 0, 1, 0, 1)
    data = [b"first half", b"second half!"]
    body = struct.pack("<BBHI", 0, 1 | 2, 0, 1000) + key_block([key], pool=0xFFFF, shards=shards)
    body += struct.pack("<2I", *map(len, data)) + struct.pack("<I", 77) + struct.pack("<H", 4) + b"name"
    with source.peer() as peer:
        payload = b"".join(data) + struct.pack("<2I", *map(_native.crc32c, data))
        assert peer.call(20 - 1, body, payload).statuses == [OK, OK]
    asked = [fingerprint(key, 0xFFFF, shards[:12]), fingerprint(key, 0xFFFF, shards[12:])]
    assert target.copy(source, asked)[0] == [OK, OK]
    for segment in (source, target):  # what both would hand on is the same to the last byte
        with segment.peer() as peer:
            request = NS + struct.pack("<QII", MIB, 2, 0) + b"".join(asked)
            reply = peer.call(FETCH, request)
        assert reply.payload == b"".join(data)
        described = [struct.unpack_from("<4B2H3I", reply.fields, 8 + 64 * i) for i in range(2)]
        for i, value in enumerate(data):
            assert described[i] == (OK, 1, 0, 0, 4, 0xFFFF, len(value), _native.crc32c(value), 77)
        assert reply.fields[8 + 128 :] == b"namename"


def test_without_leave_to_evict_only_free_room_is_used(source: Segment) -> None:
    target = Segment(TARGET_POOL, 8 * MIB, free_ahead_bytes=MIB)
    try:
        own, own_data = hashes(*(f"own {i}" for i in range(40))), values(40, 100_000)
        moved, data = hashes(*map(str, range(100))), values(100, 100_000)
        with target.peer() as peer:
            assert peer.put(own, own_data).statuses == [OK] * 40
        with source.peer() as peer:
            assert peer.put(moved, data).statuses == [OK] * 100
        asked = [fingerprint(key) for key in moved]
        statuses, _, _ = target.copy(source, asked)
        fitted = statuses.count(OK)
        assert statuses == [OK] * fitted + [NO_SPACE] * (100 - fitted), "the first are copied first"
        assert 25 <= fitted <= 34
        stats = target.store.stats()
        assert stats["evicted_objects"] == 0
        assert source.store.stats()["copied_out"] < 100, "what could not fit was fetched"
        assert stats["capacity_bytes"] - stats["used_bytes"] >= MIB, "the evictor's own room was used"
        # And with it the coldest go.
        assert target.copy(source, asked[fitted : fitted + 20], may_evict=True)[0] == [OK] * 20
        assert target.store.stats()["evicted_objects"] > 0
    finally:
        target.close()


def test_bytes_that_went_bad_are_not_spread(source: Segment, target: Segment) -> None:
    keys, data = hashes("good", "bad"), [b"g" * 5000, b"b" * 5000]
    with source.peer() as peer:
        assert peer.put(keys, data).statuses == [OK, OK]

    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:  # between both, and flips a bit of the last byte that comes by
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", source.server.tcp_port))
        with client, server:
            for reply_bytes in (24 + 56, 24 + 24 + 128 + 10_000):
                server.sendall(client.recv(65536))
                reply = b""
                while len(reply) < reply_bytes:
                    reply += server.recv(65536)
                if reply_bytes > 1000:
                    reply = reply[:-1] + bytes([reply[-1] ^ 1])
                client.sendall(reply)
            client.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    statuses, _, _ = target.copy(source, [fingerprint(key) for key in keys], port=listener.getsockname()[1])
    thread.join(20)
    listener.close()
    assert statuses == [OK, DIGEST_MISMATCH]
    with target.peer() as peer:
        assert peer.get(keys) == [(OK, data[0]), (MISS, b"")]
    assert target.store.stats()["digest_mismatches"] == 1


def test_another_object_of_the_same_key_stays(source: Segment, target: Segment) -> None:
    keys = hashes("k")
    with source.peer() as peer:
        assert peer.put(keys, [b"longer"]).statuses == [OK]
    with target.peer() as peer:
        assert peer.put(keys, [b"short"]).statuses == [OK]
        statuses, _, _ = target.copy(source, [fingerprint(keys[0])])
        assert statuses in ([EXISTS], [CONFLICT])
        assert peer.get(keys) == [(OK, b"short")]


def test_who_is_not_there_or_is_another_pool_is_told(source: Segment, target: Segment) -> None:
    asked = [fingerprint(hashes("k")[0])]
    statuses, _, trouble = target.copy(source, asked, pool_id=b"one that is gone")
    assert statuses == [UNAVAILABLE] and "refused" in trouble
    port = source.server.tcp_port
    source.server.stop()
    statuses, _, trouble = target.copy(source, asked, port=port)
    assert statuses == [UNAVAILABLE] and "reached" in trouble
    # Not even a connection is needed for what is here.
    with target.peer() as peer:
        assert peer.put(hashes("k"), [b"here"]).statuses == [OK]
    assert target.copy(source, asked, port=port)[0] == [EXISTS]


def test_what_no_master_confirms_is_not_called_copied(source: Segment, target: Segment) -> None:
    keys = hashes("k")
    with source.peer() as peer:
        assert peer.put(keys, [b"bytes"]).statuses == [OK]
    target.confirms = False
    statuses, _, _ = target.copy(source, [fingerprint(keys[0])])
    assert statuses == [NOT_COMMITTED]
    target.confirms = True
    assert target.copy(source, [fingerprint(keys[0])])[0] == [EXISTS]


def test_a_rate_is_kept_and_a_cancelled_order_ends(source: Segment, target: Segment) -> None:
    keys, data = hashes(*map(str, range(60))), values(60, 200_000)
    with source.peer() as peer:
        assert peer.put(keys, data).statuses == [OK] * 60
    asked = [fingerprint(key) for key in keys]
    began = time.monotonic()
    # Three runs of 4 MiB: the second and the third wait for 4 MiB each.
    assert target.copy(source, asked, bytes_per_s=16 * MIB)[0] == [OK] * 60
    assert time.monotonic() - began >= 0.45

    with target.peer() as peer:
        remove = struct.pack("<B3xI", 0, 0) + key_block(keys)
        assert peer.call(21, remove).statuses == [OK] * 60
    cancellation = _native.CopyCancellation()
    given: list[tuple[list[int], int, str]] = []
    thread = threading.Thread(
        target=lambda: given.append(
            target.copy(source, asked, bytes_per_s=MIB, timeout_ms=600_000, cancellation=cancellation)
        )
    )
    before = target.store.stats()["copied_in"]
    thread.start()
    wait_until(lambda: target.store.stats()["copied_in"] > before)
    target.copier.cancel(cancellation)
    thread.join(20)
    statuses, _, trouble = given[0]
    assert UNAVAILABLE in statuses and trouble == "it was cancelled"
    assert {name: used for name, used, *_ in target.store.budget_usage()}["writing_bytes"] == 0
    # What was not got to is ordered again.
    left = target.copy(source, asked)[0]
    assert set(left) == {OK, EXISTS}


def test_a_fetch_has_its_caps(source: Segment) -> None:
    keys, data = hashes("a", "b"), values(2, 100_000)
    with source.peer() as peer:
        assert peer.put(keys, data).statuses == [OK, OK]
        asked = b"".join(fingerprint(key) for key in keys)
        reply = peer.call(FETCH, NS + struct.pack("<QII", 1, 2, 0) + asked)
        assert [reply.fields[8], reply.fields[8 + 64]] == [OK, 13], "the first is sent, whatever its length"
        assert reply.payload == data[0]
        assert peer.call(FETCH, NS + struct.pack("<QII", 1, 0, 0)).status == 10
        assert peer.call(FETCH, NS + struct.pack("<QII", 1, 1025, 0) + bytes(16 * 1025)).status == 13
        assert peer.call(FETCH, NS + struct.pack("<QII", 1, 2, 0) + bytes(16)).status == 10
        # It was no use of theirs.
        assert source.store.stats()["gets"] == 0
