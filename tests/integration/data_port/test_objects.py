"""Objects over the data port, spoken to byte by byte: put, found, read, committed, evicted."""

import random
import select
import struct
import time

from kvstore_client import _native

from .peer import (
    CONFLICT,
    DIGEST_MISMATCH,
    EXISTS,
    GET,
    LENGTH_MISMATCH,
    MIB,
    MISS,
    NO_SPACE,
    NOT_COMMITTED,
    NS,
    OK,
    PIN,
    PUT,
    STALE_NAMESPACE,
    Peer,
    frame,
    hashes,
    key_block,
    make_store,
    put_frame,
    values,
    wait_until,
)

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
    assert store.stats()["used_bytes"] == 64


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


def test_journal_fd_becomes_readable_when_there_is_something_to_drain(
    peer: Peer, store: _native.SegmentStore
) -> None:
    def readable(within_s: float = 0) -> bool:
        return bool(select.select([store.journal_fd], [], [], within_s)[0])

    assert not readable()
    peer.put(hashes("a", "b"), [b"1", b"2"])
    assert readable(5)
    assert (store.journal_drain(1) or ())[:2] == (1, 1)
    assert readable(5)
    assert (store.journal_drain(9) or ())[:2] == (2, 2)
    assert not readable()
    assert store.journal_drain(9) is None
    assert store.journal_rewind(0)
    assert readable(5)


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
    assert sorted(store.namespaces()) == [new, old]
    store.set_namespaces([new], [new, old])
    assert (peer.pin(keys, ns=old), peer.get(keys, ns=old)) == ([MISS], [(MISS, b"")])
    assert peer.put(keys, [b"x"], ns=old).statuses == [STALE_NAMESPACE]
    assert peer.get(keys, ns=new) == [(OK, new)]
    assert peer.put(keys, [b"x"], ns=fresh).statuses == [OK]
    store.retire_namespace(fresh)
    assert peer.pin(keys, ns=fresh) == [MISS]
    store.set_namespaces([new, fresh], [new])
    assert peer.put(hashes("other"), [b"y"], ns=fresh).statuses == [OK]


def test_filling_three_times_over_refuses_nothing_and_leaves_little_free(
    peer: Peer, store: _native.SegmentStore
) -> None:
    for batch in range(48):
        keys = hashes(*(f"{batch}-{i}" for i in range(16)))
        assert peer.put(keys, values(16, 65_536 - 8, seed=batch)).statuses == [OK] * 16
    stats = store.stats()
    assert stats["no_space"] == 0
    assert stats["evicted_objects"] > 500
    assert stats["used_bytes"] >= 0.95 * stats["capacity_bytes"]
    assert peer.get(keys) == [(OK, v) for v in values(16, 65_536 - 8, seed=47)]


def test_a_put_waits_for_pins_to_run_out_and_then_succeeds() -> None:
    store = make_store(MIB, pinned_fraction_max=1.0, session_share_max=1.0, free_ahead_bytes=0)
    server = _native.DataServer(store, tcp_host="127.0.0.1")
    old = hashes("old1", "old2")
    with Peer(
        ("127.0.0.1", server.tcp_port)
    ) as writer:  # its batch ends with it, and keeps nothing from then on
        assert writer.put(old, [bytes(MIB // 2)] * 2).statuses == [OK, OK]
    with Peer(("127.0.0.1", server.tcp_port)) as peer:
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
    keys = hashes(*map(str, range(8)))
    with Peer(
        ("127.0.0.1", server.tcp_port)
    ) as writer:  # its batch ends with it, and keeps nothing from then on
        assert writer.put(keys, [bytes(100_000)] * 8).statuses == [OK] * 8
    with Peer(("127.0.0.1", server.tcp_port)) as peer:
        assert peer.pin(keys, pin_ms=60_000) == [OK] * 8
        assert 0 < store.stats()["pinned_bytes"] <= MIB // 4
        wait_until(lambda: peer.put(hashes("big"), [bytes(600_000)]).statuses == [OK])
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
