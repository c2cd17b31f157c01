"""Peers that have not said who they are: what they may take, and for how long."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from pathlib import Path

from integration.data_port.peer import (
    HELLO,
    MISS,
    OK,
    UNAVAILABLE,
    Peer,
    hashes,
    wait_until,
)
from kvstore_client import _native

MIB = 1 << 20
UNGREETED_MAX = 256


def header(op: int, body_bytes: int, payload_bytes: int = 0) -> bytes:
    return struct.pack("<IBBHIIQ", 0x3153564B, 1, op, 0, 1, body_bytes, payload_bytes)


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def connect(server: _native.DataServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.tcp_port), timeout=20)


def is_closed(peer: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        while peer.recv(4096):
            pass
    return True


def test_announcing_large_greetings_takes_no_memory_and_shuts_nobody_out(server: _native.DataServer) -> None:
    before = resident_bytes()
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stranger = stack.enter_context(connect(server))
            stranger.sendall(header(HELLO, 16 * MIB))
        wait_until(lambda: server.stats()["connections_total"] >= 60)
        with Peer(("127.0.0.1", server.tcp_port)) as client:
            assert client.pin(hashes("k")) == [MISS]
        assert resident_bytes() - before < 16 * MIB


def test_a_greeting_that_trickles_is_cut_off_after_five_seconds(server: _native.DataServer) -> None:
    began = time.monotonic()
    with connect(server) as slow, connect(server) as silent:
        slow.sendall(header(HELLO, 2000))
        slow.settimeout(0.25)
        ended = False
        while not ended and time.monotonic() - began < 15:
            try:
                slow.sendall(b"x")
                ended = slow.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                ended = True
        assert ended
        assert 4.5 < time.monotonic() - began < 8
        assert is_closed(silent)
        assert time.monotonic() - began < 9
    wait_until(lambda: server.stats()["ungreeted_connections"] == 0)
    assert server.stats()["ungreeted_dropped"] == 2


def test_a_fleet_that_comes_at_once_gets_in_whole(store: _native.SegmentStore) -> None:
    server = _native.DataServer(store, tcp_host="127.0.0.1", connections_max=1024)
    address = ("127.0.0.1", server.tcp_port)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            # All of these connect before any says HELLO.
            newcomers = [stack.enter_context(Peer(address, greet=False)) for _ in range(100)]
            for client in newcomers:
                assert client.hello().status == OK
        stats = server.stats()
        assert (stats["connections"], stats["ungreeted_dropped"]) == (300, 0)
    server.stop()


def test_silent_strangers_keep_no_client_out(store: _native.SegmentStore) -> None:
    server = _native.DataServer(store, tcp_host="127.0.0.1", connections_max=4)
    address = ("127.0.0.1", server.tcp_port)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Peer(address)) for _ in range(3)]
        connected = time.monotonic()
        strangers = [stack.enter_context(connect(server)) for _ in range(500)]
        wait_until(lambda: server.stats()["ungreeted_dropped"] >= 500 - UNGREETED_MAX)
        assert is_closed(strangers[0])
        assert time.monotonic() - connected > 0.1, "each has time to greet"
        began = time.monotonic()
        late = stack.enter_context(Peer(address))
        for client in (*clients, late):
            assert client.pin(hashes("k")) == [MISS]
        assert time.monotonic() - began < 2
        stats = server.stats()
        assert stats["connections"] == 4
        assert stats["ungreeted_connections"] <= UNGREETED_MAX
        assert stats["refused_connections"] == 0
        with Peer(address, greet=False) as fifth:
            assert fifth.hello().status == UNAVAILABLE, "the limit is of those who greet"
        late.socket.close()
        wait_until(lambda: server.stats()["connections"] == 3)
        with Peer(address, greet=False) as fifth:
            assert fifth.hello().status == OK
    server.stop()
