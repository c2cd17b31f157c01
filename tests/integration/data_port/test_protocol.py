"""HELLO, malformed input and the life of connections and servers."""

import os
import random
import socket
import struct
import threading
import time

import pytest

from kvstore_client import _native

from .peer import (
    BAD_REQUEST,
    EXISTS,
    MIB,
    MISS,
    NS,
    OK,
    PIN,
    POOL_ID,
    PUT,
    TOO_LARGE,
    UNAUTHORIZED,
    UNAVAILABLE,
    UNSUPPORTED_VERSION,
    WRONG_PEER,
    Peer,
    hashes,
    key_block,
    make_store,
    put_frame,
    values,
    wait_until,
)

# ---- HELLO


def test_hello_tells_caps_and_the_pool_id(server: _native.DataServer) -> None:
    with Peer(("127.0.0.1", server.tcp_port), greet=False) as peer:
        reply = peer.hello()
    version, keys_max, body_max, payload_max, pool_id, features = struct.unpack("<B3xIIQ16sI", reply.fields)
    assert (version, keys_max, body_max, payload_max) == (2, 65_536, 16 * MIB, 2048 * MIB)
    assert (pool_id, features) == (POOL_ID, 4 | 8 | 16)  # COMMIT, KEEP, FETCH


def test_a_wrong_token_version_or_peer_is_refused_and_the_connection_closed(
    store: _native.SegmentStore,
) -> None:
    server = _native.DataServer(store, tcp_host="127.0.0.1", tokens=["secret"])
    address = ("127.0.0.1", server.tcp_port)
    attempts = [
        ({"token": ""}, UNAUTHORIZED),
        ({"token": "secreT"}, UNAUTHORIZED),
        ({"token": "secret!"}, UNAUTHORIZED),
        ({"token": "secret", "versions": (1, 1)}, UNSUPPORTED_VERSION),
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


def test_each_of_several_tokens_is_taken_and_no_other(store: _native.SegmentStore) -> None:
    server = _native.DataServer(store, tcp_host="127.0.0.1", tokens=["old secret", "new"])
    for token, status in {
        "old secret": OK,
        "new": OK,
        "": UNAUTHORIZED,
        "old secretnew": UNAUTHORIZED,
    }.items():
        with Peer(("127.0.0.1", server.tcp_port), greet=False) as peer:
            assert peer.hello(token=token).status == status, token
    server.stop()
    with pytest.raises(ValueError, match="a token is over"):
        _native.DataServer(store, tcp_host="127.0.0.1", tokens=["new", "x" * 5000])


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
        make_store(1 << 50)
    with pytest.raises(ValueError, match="lru"):
        make_store(eviction_policy="none such")
    with pytest.raises(ValueError, match="free_ahead_bytes"):
        make_store(free_ahead_bytes=1 << 60)


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
