"""The data port, spoken to byte by byte by a peer that knows only docs/protocol.md."""

import os
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from kvstore_client import _native

from .data_port_peer import (
    ATTACH,
    BAD_REQUEST,
    CONFLICT,
    DIGEST_MISMATCH,
    EXISTS,
    GET,
    LENGTH_MISMATCH,
    MISS,
    NO_SPACE,
    NOT_COMMITTED,
    NS,
    OK,
    PIN,
    PUT,
    STALE_NAMESPACE,
    TOO_LARGE,
    UNAUTHORIZED,
    UNAVAILABLE,
    UNSUPPORTED_VERSION,
    WRONG_PEER,
    Peer,
    frame,
    hashes,
    key_block,
    put_frame,
)

MIB = 1 << 20
POOL_ID = b"pool-id-16-bytes"


def make_store(capacity_bytes: int = 16 * MIB, **options: object) -> _native.SegmentStore:
    return _native.SegmentStore(capacity_bytes=capacity_bytes, pool_id=POOL_ID, **options)  # type: ignore[arg-type]


@pytest.fixture
def store() -> Iterator[_native.SegmentStore]:
    store = make_store()
    yield store
    store.close()


@pytest.fixture
def server(store: _native.SegmentStore) -> Iterator[_native.DataServer]:
    server = _native.DataServer(store, tcp_host="127.0.0.1")
    yield server
    server.stop()


@pytest.fixture
def peer(server: _native.DataServer) -> Iterator[Peer]:
    with Peer(("127.0.0.1", server.tcp_port)) as peer:
        yield peer


def wait_until(condition, timeout_s: float = 10.0) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.002)


def values(count: int, size: int, seed: int = 1) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(size + i % 7) for i in range(count)]


# ---- whole operations


def test_what_was_put_is_pinned_found_and_read_back(peer: Peer, store: _native.SegmentStore) -> None:
    keys, data = hashes(*map(str, range(128))), values(128, 5000)
    reply = peer.put(keys, data)
    assert (reply.status, reply.statuses) == (OK, [OK] * 128)
    absent = hashes("absent")
    assert peer.pin(keys + absent) == [OK] * 128 + [MISS]
    assert peer.get(absent + keys) == [(MISS, b"")] + [(OK, value) for value in data]
    stats = store.stats()
    assert (stats["object_count"], stats["puts"], stats["gets"], stats["misses"]) == (128, 128, 128, 1)
    assert stats["put_bytes"] == stats["get_bytes"] == sum(map(len, data))


def test_entries_are_key_major_over_shards(peer: Peer) -> None:
    shards = struct.pack("<6H", 0, 4, 0, 1, 0, 1) + struct.pack("<6H", 4, 4, 0, 1, 0, 1)
    keys, data = hashes("a", "b"), [b"a0", b"a1", b"b0", b"b1"]
    block = key_block(keys, shards=shards)
    digests = struct.pack("<4I", *map(_native.crc32c, data))
    body = struct.pack("<BBHI", 0, 0, 0, 1000) + block + struct.pack("<4I", 2, 2, 2, 2)
    assert peer.call(PUT, body, b"".join(data) + digests).statuses == [OK] * 4
    reply = peer.call(GET, bytes(8) + block + bytes(16))
    assert reply.payload == b"a0a1b0b1"


def test_objects_of_another_pool_or_shard_are_other_objects(peer: Peer) -> None:
    keys = hashes("page")
    assert peer.put(keys, [b"bytes"]).statuses == [OK]
    other_pool = peer.call(PIN, bytes(8) + key_block(keys, pool=1))
    other_shard = peer.call(PIN, bytes(8) + key_block(keys, shards=struct.pack("<6H", 0, 0, 1, 2, 0, 1)))
    assert (other_pool.statuses, other_shard.statuses) == ([MISS], [MISS])


def test_a_second_put_is_exists_and_another_length_a_conflict(
    peer: Peer, store: _native.SegmentStore
) -> None:
    keys = hashes("k")
    assert peer.put(keys, [b"first"]).statuses == [OK]
    assert peer.put(keys, [b"first"]).statuses == [EXISTS]
    assert peer.put(keys, [b"longer than that"]).statuses == [CONFLICT]
    assert peer.get(keys) == [(OK, b"first")]
    assert store.stats()["conflicts"] == 1


def test_bytes_that_are_not_what_the_writer_hashed_are_not_sealed(
    peer: Peer, store: _native.SegmentStore
) -> None:
    keys = hashes("good", "bad")
    digests = [_native.crc32c(b"good"), _native.crc32c(b"something else")]
    assert peer.put(keys, [b"good", b"evil"], digests=digests).statuses == [OK, DIGEST_MISMATCH]
    assert peer.pin(keys) == [OK, MISS]
    assert store.stats()["digest_mismatches"] == 1
    assert store.stats()["used_bytes"] == 512


def test_an_unexpected_length_is_answered_without_bytes(peer: Peer) -> None:
    keys = hashes("a", "b")
    peer.put(keys, [b"12345", b"678"])
    assert peer.get(keys, expected=[4, 3]) == [(LENGTH_MISMATCH, b""), (OK, b"678")]


def test_empty_objects_and_odd_sizes_survive(peer: Peer) -> None:
    rng = random.Random(3)
    data = [rng.randbytes(size) for size in (0, 1, 511, 512, 513, 65_537, 300_001)]
    keys = hashes(*map(str, range(len(data))))
    assert peer.put(keys, data).statuses == [OK] * len(data)
    assert peer.get(keys) == [(OK, value) for value in data]


def test_removed_objects_are_gone_and_journalled(peer: Peer, store: _native.SegmentStore) -> None:
    keys = hashes("a", "b")
    peer.put(keys, [b"x", b"y"])
    assert peer.remove([*keys, *hashes("c")]).statuses == [OK, OK, MISS]
    assert peer.pin(keys) == [MISS, MISS]
    first, last, groups = store.journal_drain(100) or (0, 0, b"")
    assert (first, last) == (1, 4)
    assert [groups[0], groups[16 + 2 * 20]] == [1, 2]  # a group of ADDs, then one of REMOVEs
    assert store.stats()["used_bytes"] == 0


def test_texts_and_depths_ride_along(peer: Peer) -> None:
    keys = hashes("t1", "t2")
    extra = struct.pack("<2I", 4, 5) + struct.pack("<2H", 5, 0) + b"hello"
    assert peer.put(keys, [b"one", b"two"], flags=3, extra=extra).statuses == [OK, OK]
    assert peer.get(keys) == [(OK, b"one"), (OK, b"two")]


def test_pipelined_requests_are_answered_in_order(peer: Peer) -> None:
    keys, data = hashes(*map(str, range(20))), values(20, 30_000)
    peer.socket.sendall(b"".join(put_frame([k], [v]) for k, v in zip(keys, data, strict=True)))
    peer.socket.sendall(
        b"".join(frame(PIN, bytes(8) + key_block([k]), request_id=i) for i, k in enumerate(keys))
    )
    assert [peer.reply().statuses for _ in keys] == [[OK]] * 20
    replies = [peer.reply() for _ in keys]
    assert [(r.request_id, r.statuses) for r in replies] == [(i, [OK]) for i in range(20)]


def test_two_puts_of_one_key_in_a_batch_store_it_once(peer: Peer) -> None:
    keys = hashes("twin") * 2
    assert sorted(peer.put(keys, [b"same", b"same"]).statuses) == [OK, EXISTS]
    assert peer.get(keys) == [(OK, b"same")] * 2


# ---- commit


def test_a_committed_put_is_answered_when_the_journal_is_acknowledged(
    peer: Peer, store: _native.SegmentStore
) -> None:
    keys = hashes("early", "late")
    assert peer.put(keys[:1], [b"1"]).status == OK  # the second put's ack covers this one too
    peer.socket.sendall(put_frame(keys[1:], [b"2"], ack=1, timeout_ms=20_000))
    wait_until(lambda: store.last_seq == 2)
    store.journal_ack(1)
    assert not select.select([peer.socket], [], [], 0.05)[0]
    store.journal_ack(2)
    assert (reply := peer.reply()).status == OK
    assert reply.statuses == [OK]


def test_a_put_that_nobody_confirms_is_not_committed_but_sealed(
    peer: Peer, store: _native.SegmentStore
) -> None:
    reply = peer.put(hashes("k"), [b"v"], ack=1, timeout_ms=30)
    assert (reply.status, reply.statuses) == (NOT_COMMITTED, [OK])
    assert peer.get(hashes("k")) == [(OK, b"v")]
    reply = peer.put(hashes("k"), [b"v"], ack=1, timeout_ms=30)
    assert (reply.status, reply.statuses) == (NOT_COMMITTED, [EXISTS])  # found, but not durable either
    store.journal_ack(store.last_seq)
    assert peer.put(hashes("k"), [b"v"], ack=1, timeout_ms=30).status == OK
    assert store.stats()["not_committed"] == 2


def test_journal_fd_is_readable_exactly_while_there_is_something_to_drain(
    peer: Peer, store: _native.SegmentStore
) -> None:
    def readable() -> bool:
        return bool(select.select([store.journal_fd], [], [], 0)[0])

    assert not readable()
    peer.put(hashes("a", "b"), [b"1", b"2"])
    assert readable()
    assert (store.journal_drain(1) or ())[:2] == (1, 1)
    assert readable()
    assert (store.journal_drain(9) or ())[:2] == (2, 2)
    assert not readable()
    assert store.journal_drain(9) is None
    assert store.journal_rewind(0)
    assert readable()


def test_the_inventory_stands_for_the_journal_so_far(peer: Peer, store: _native.SegmentStore) -> None:
    keys = hashes(*"abcdef")
    peer.put(keys, [b"v"] * 6)
    peer.remove(keys[:2])
    last_seq, chunks = store.inventory(3)
    assert last_seq == store.last_seq == 8
    assert store.journal_drain(10) is None
    found = {
        chunk[16 + 16 * i :][:16] for chunk in chunks for i in range(struct.unpack_from("<I", chunk, 4)[0])
    }
    whole = struct.pack("<6H", 0, 0, 0, 1, 0, 1)
    expected = _native.fingerprints(NS, 0, whole, b"".join(keys[2:]))
    assert found == {expected[16 * i :][:16] for i in range(4)}
    assert [len(chunk) for chunk in chunks] == [16 + 3 * 20, 16 + 20]


# ---- namespaces, space


def test_a_retired_namespace_is_gone_at_once_and_refuses_puts(
    peer: Peer, store: _native.SegmentStore
) -> None:
    old, new, fresh = b"old-ns-1", b"new-ns-1", b"fresh-ns"
    keys = hashes("k")
    for ns in (old, new):
        assert peer.put(keys, [ns], ns=ns).statuses == [OK]
    store.set_namespaces([new])
    assert (peer.pin(keys, ns=old), peer.get(keys, ns=old)) == ([MISS], [(MISS, b"")])
    assert peer.put(keys, [b"x"], ns=old).statuses == [STALE_NAMESPACE]
    assert peer.get(keys, ns=new) == [(OK, new)]
    assert peer.put(keys, [b"x"], ns=fresh).statuses == [OK]
    store.retire_namespace(fresh)
    assert peer.pin(keys, ns=fresh) == [MISS]
    store.set_namespaces([new, fresh])
    assert peer.put(hashes("other"), [b"y"], ns=fresh).statuses == [OK]


def test_filling_three_times_over_refuses_nothing_and_keeps_under_the_watermark(
    peer: Peer, store: _native.SegmentStore
) -> None:
    for batch in range(48):
        keys = hashes(*(f"{batch}-{i}" for i in range(16)))
        assert peer.put(keys, values(16, 65_536 - 8, seed=batch)).statuses == [OK] * 16
    stats = store.stats()
    assert stats["no_space"] == 0
    assert stats["evicted_objects"] > 500
    wait_until(lambda: store.stats()["used_bytes"] <= 0.95 * stats["capacity_bytes"])
    assert peer.get(keys) == [(OK, v) for v in values(16, 65_536 - 8, seed=47)]


def test_a_put_waits_for_pins_to_run_out_and_then_succeeds() -> None:
    store = make_store(MIB, pinned_fraction_max=1.0, high_watermark=1.0, low_watermark=1.0)
    server = _native.DataServer(store, tcp_host="127.0.0.1")
    with Peer(("127.0.0.1", server.tcp_port)) as peer:
        old = hashes("old1", "old2")
        assert peer.put(old, [bytes(MIB // 2)] * 2).statuses == [OK, OK]
        assert peer.pin(old, pin_ms=60_000) == [OK, OK]
        assert peer.put(hashes("new"), [bytes(MIB // 4)], timeout_ms=50).statuses == [NO_SPACE]
        assert peer.get(old) == [(OK, bytes(MIB // 2))] * 2
        with Peer(("127.0.0.1", server.tcp_port)) as other:
            peer.socket.sendall(put_frame(hashes("new"), [bytes(MIB // 4)], timeout_ms=20_000))
            time.sleep(0.02)  # let the put reach its wait; what follows holds either way
            assert other.remove(old[:1]).statuses == [OK]
        assert peer.reply().statuses == [OK]
    server.stop()
    store.close()


def test_pins_beyond_their_share_of_the_pool_promise_nothing_but_answer_ok() -> None:
    store = make_store(MIB, pinned_fraction_max=0.25)
    server = _native.DataServer(store, tcp_host="127.0.0.1")
    with Peer(("127.0.0.1", server.tcp_port)) as peer:
        keys = hashes(*map(str, range(8)))
        assert peer.put(keys, [bytes(100_000)] * 8).statuses == [OK] * 8
        assert peer.pin(keys, pin_ms=60_000) == [OK] * 8
        assert 0 < store.stats()["pinned_bytes"] <= MIB // 4
        assert peer.put(hashes("big"), [bytes(600_000)]).statuses == [OK]
    server.stop()
    store.close()


def test_an_object_larger_than_the_pool_is_refused_without_waiting(peer: Peer) -> None:
    reply = peer.put(hashes("huge", "small"), [bytes(17 * MIB), b"ok"], timeout_ms=60_000)
    assert reply.statuses == [NO_SPACE, OK]


# ---- writers that die


def test_a_writer_that_dies_mid_put_leaves_nothing_behind(
    server: _native.DataServer, store: _native.SegmentStore, peer: Peer
) -> None:
    keys, data = hashes("x", "y"), values(2, 200_000)
    whole = put_frame(keys, data)
    for sent in (24, 60, 30_000, 250_000, len(whole) - 1):
        with Peer(("127.0.0.1", server.tcp_port)) as writer:
            writer.socket.sendall(whole[:sent])
            if sent >= 30_000:
                wait_until(lambda: store.stats()["used_bytes"] > 0)
            assert peer.pin(keys) == [MISS, MISS]
        wait_until(lambda: store.stats()["used_bytes"] == 0)
    assert store.last_seq == 0
    assert peer.put(keys, data).statuses == [OK, OK]


def test_an_unfinished_put_does_not_block_the_key_for_others(server: _native.DataServer, peer: Peer) -> None:
    keys, data = hashes("k"), values(1, 200_000)
    whole = put_frame(keys, data)
    with Peer(("127.0.0.1", server.tcp_port)) as slow:
        slow.socket.sendall(whole[:100_000])
        assert peer.put(keys, data).statuses == [OK]
        slow.socket.sendall(whole[100_000:])
        assert slow.reply().statuses == [EXISTS]
    assert peer.get(keys) == [(OK, data[0])]


# ---- HELLO


def test_hello_tells_caps_and_the_pool_id(server: _native.DataServer) -> None:
    with Peer(("127.0.0.1", server.tcp_port), greet=False) as peer:
        reply = peer.hello()
    version, keys_max, body_max, payload_max, pool_id, features = struct.unpack("<B3xIIQ16sI", reply.fields)
    assert (version, keys_max, body_max, payload_max) == (1, 65_536, 16 * MIB, 2048 * MIB)
    assert (pool_id, features) == (POOL_ID, 0)


def test_a_wrong_token_version_or_peer_is_refused_and_the_connection_closed(
    store: _native.SegmentStore,
) -> None:
    server = _native.DataServer(store, tcp_host="127.0.0.1", token="secret")
    address = ("127.0.0.1", server.tcp_port)
    attempts = [
        ({"token": ""}, UNAUTHORIZED),
        ({"token": "secreT"}, UNAUTHORIZED),
        ({"token": "secret!"}, UNAUTHORIZED),
        ({"token": "secret", "versions": (2, 9)}, UNSUPPORTED_VERSION),
        ({"token": "secret", "expected_peer": b"another-pool-id!"}, WRONG_PEER),
    ]
    for options, status in attempts:
        with Peer(address, greet=False) as peer:
            reply = peer.hello(**options)  # type: ignore[arg-type]
            assert reply.status == status
            assert reply.text
            assert peer.is_closed()
    with Peer(address, greet=False) as peer:
        assert peer.hello(token="secret", versions=(0, 200), expected_peer=POOL_ID).status == OK
    assert server.stats()["unauthorized"] == 3
    server.stop()


def test_anything_before_hello_is_refused(server: _native.DataServer) -> None:
    with Peer(("127.0.0.1", server.tcp_port), greet=False) as peer:
        assert peer.call(PIN, bytes(8) + key_block(hashes("k"))).status == BAD_REQUEST
        assert peer.is_closed()


def test_connections_over_the_limit_hear_unavailable(store: _native.SegmentStore) -> None:
    server = _native.DataServer(store, tcp_host="127.0.0.1", connections_max=2)
    address = ("127.0.0.1", server.tcp_port)
    with Peer(address), Peer(address):
        with Peer(address, greet=False) as third:
            assert third.hello().status == UNAVAILABLE
            assert third.is_closed()
        assert server.stats()["refused_connections"] == 1
    wait_until(lambda: server.stats()["connections"] == 0)
    with Peer(address) as peer:
        assert peer.pin(hashes("k")) == [MISS]
    server.stop()


def test_an_idle_connection_is_closed(store: _native.SegmentStore) -> None:
    server = _native.DataServer(store, tcp_host="127.0.0.1", idle_timeout_ms=50)
    with Peer(("127.0.0.1", server.tcp_port)) as peer:
        assert peer.is_closed()
    server.stop()


# ---- malformed input


@pytest.mark.parametrize(
    "header",
    [
        struct.pack("<IBBHIIQ", 0x12345678, 1, PIN, 0, 1, 0, 0),
        struct.pack("<IBBHIIQ", 0x3153564B, 1, PIN, 0, 1, 16 * MIB + 1, 0),
        struct.pack("<IBBHIIQ", 0x3153564B, 1, PUT, 0, 1, 0, 2048 * MIB + 1),
        struct.pack("<IBBHIIQ", 0x3153564B, 9, PIN, 0, 1, 0, 0),
        struct.pack("<IBBHIIQ", 0x3153564B, 1, PIN, 1, 1, 0, 0),
    ],
    ids=["magic", "body cap", "payload cap", "version", "a reply"],
)
def test_a_malformed_header_closes_the_connection(
    server: _native.DataServer, peer: Peer, header: bytes
) -> None:
    peer.socket.sendall(header)
    assert peer.is_closed()
    assert server.stats()["bad_requests"] == 1


def test_every_truncation_of_a_body_is_refused_and_the_connection_lives(peer: Peer) -> None:
    body = struct.pack("<II", 0, 0) + key_block(hashes("a", "b"))
    for cut in range(len(body)):
        assert peer.call(PIN, body[:cut]).status == BAD_REQUEST
    assert peer.pin(hashes("a")) == [MISS]
    assert peer.call(PIN, body + b"bytes of a later revision").statuses == [MISS, MISS]


def test_unknown_ops_and_counts_over_the_caps_are_refused(peer: Peer) -> None:
    assert peer.call(99, b"").status == BAD_REQUEST
    block = NS + struct.pack("<HHI", 0, 1, 65_537)
    assert peer.call(PIN, bytes(8) + block).status == TOO_LARGE
    assert peer.call(PIN, bytes(8) + NS + struct.pack("<HHI", 0, 65, 1)).status == TOO_LARGE
    assert peer.call(PIN, bytes(8) + NS + struct.pack("<HHI", 0, 0, 0)).status == BAD_REQUEST
    assert peer.pin(hashes("a")) == [MISS]


def test_a_put_whose_payload_does_not_fit_its_lengths_is_refused_and_the_connection_closed(
    server: _native.DataServer, store: _native.SegmentStore
) -> None:
    good = put_frame(hashes("k"), [b"12345678"])
    body = good[24:-12]
    for payload in (b"", b"12345678", b"12345678" + bytes(5), bytes(300_000)):
        with Peer(("127.0.0.1", server.tcp_port)) as peer:
            assert peer.call(PUT, body, payload).status == BAD_REQUEST
            if payload:
                assert peer.is_closed()
    assert store.stats()["used_bytes"] == 0


def test_garbage_never_takes_the_server_down(server: _native.DataServer, peer: Peer) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    whole = put_frame(hashes("a", "b"), values(2, 3000))
    for _ in range(150):
        with Peer(("127.0.0.1", server.tcp_port)) as hostile:
            data = bytearray(whole)
            for _ in range(rng.randrange(1, 6)):
                data[rng.randrange(rng.choice((24, 120, len(data))))] = rng.randrange(256)
            hostile.socket.sendall(data[: rng.randrange(1, len(data) + 1)])
            hostile.socket.shutdown(socket.SHUT_WR)
            assert hostile.is_closed()
    assert peer.pin(hashes("nothing")) == [MISS]
    assert server.stats()["internal_errors"] == 0
    wait_until(lambda: server.stats()["connections"] == 1)


# ---- life


def test_stop_ends_waiting_puts_and_open_connections_at_once() -> None:
    store = make_store(MIB)
    server = _native.DataServer(store, tcp_host="127.0.0.1")
    port = server.tcp_port
    with Peer(("127.0.0.1", port)) as waiting, Peer(("127.0.0.1", port)) as idle:
        waiting.socket.sendall(put_frame(hashes("k"), [b"v"], ack=1, timeout_ms=60_000))
        wait_until(lambda: store.last_seq == 1)
        started = time.monotonic()
        server.stop()
        assert time.monotonic() - started < 5
        assert idle.is_closed()
        assert waiting.is_closed()
    with pytest.raises(OSError):  # noqa: PT011 - any refusal will do
        Peer(("127.0.0.1", port))
    server.stop()
    store.close()


def test_an_address_that_cannot_be_had_is_named(
    store: _native.SegmentStore, server: _native.DataServer
) -> None:
    with pytest.raises(OSError, match=str(server.tcp_port)):
        _native.DataServer(store, tcp_host="127.0.0.1", tcp_port=server.tcp_port)


def test_a_pool_that_cannot_be_had_names_the_limit() -> None:
    with pytest.raises(MemoryError, match="capacity_bytes"):
        make_store(1 << 50, object_bytes_min=1 << 30)
    with pytest.raises(ValueError, match="lru"):
        make_store(eviction_policy="none such")
    with pytest.raises(ValueError, match="watermark"):
        make_store(low_watermark=0.9, high_watermark=0.5)


def test_readers_get_right_bytes_or_a_miss_while_writers_overrun_the_pool() -> None:
    store = make_store(4 * MIB)
    server = _native.DataServer(store, tcp_host="127.0.0.1")
    address = ("127.0.0.1", server.tcp_port)
    pages = {name: os.urandom(40_000 + 997 * (i % 13)) for i, name in enumerate(map(str, range(300)))}
    names = list(pages)
    problems: list[str] = []
    stop = threading.Event()

    def read(seed: int) -> None:
        rng = random.Random(seed)
        with Peer(address) as reader:
            while not stop.is_set():
                wanted = rng.sample(names, 8)
                for name, (status, value) in zip(wanted, reader.get(hashes(*wanted)), strict=True):
                    if status not in (OK, MISS) or (status == OK and value != pages[name]):
                        problems.append(f"{name}: status {status}, {len(value)} bytes")

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(2)]
    for thread in readers:
        thread.start()
    try:
        with Peer(address) as writer:
            for start in range(0, 300, 10):
                batch = names[start : start + 10]
                statuses = writer.put(hashes(*batch), [pages[name] for name in batch]).statuses
                problems += [f"put {s}" for s in statuses if s not in (OK, EXISTS)]
    finally:
        stop.set()
        for thread in readers:
            thread.join()
    assert problems == []
    assert store.stats()["evicted_objects"] > 0
    server.stop()
    store.close()
