"""The limit over TCP: two plain connections with a batch striped over them, driven from Python. No index, no digest, no checks.

A request is `op u8, count u32, page bytes u32`, then an offset (u64) a page, then for a put the pages. A put is answered with one
byte, a get with the pages.
"""

from __future__ import annotations

import ctypes
import mmap
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.peers.base import PeerClient, Servers, accepts, free_port

CONNECTIONS = 2
PUT, GET = 1, 2
HEADER = struct.Struct("<BII")
IOV_MAX = 512


class SocketsServers(Servers):
    """One process: this module run as a program."""

    name = "sockets"

    def start(self) -> None:
        self._port = free_port()
        self.spawn(sys.executable, "-m", "benchmarks.peers.sockets", str(self._port), str(self.pool_bytes))
        self.wait_for(lambda: accepts(self._port), "the server")

    def connection(self) -> dict[str, Any]:
        return {"port": self._port, "pool_bytes": self.pool_bytes}


def view(address: int, size_bytes: int) -> memoryview:
    return memoryview((ctypes.c_char * size_bytes).from_address(address)).cast("B")


def send_all(connection: socket.socket, parts: list[memoryview]) -> None:
    """sendmsg until everything has left."""
    while parts:
        sent = connection.sendmsg(parts[:IOV_MAX])
        while parts and sent >= len(parts[0]):
            sent -= len(parts.pop(0))
        if sent:
            parts[0] = parts[0][sent:]


def receive_all(connection: socket.socket, parts: Sequence[memoryview]) -> None:
    """Fills the parts in order. ConnectionError at the end of the stream."""
    for part in parts:
        while len(part):
            got = connection.recv_into(part, 0, socket.MSG_WAITALL)
            if got == 0:
                raise ConnectionError("the peer closed the connection")
            part = part[got:]


class SocketsClient(PeerClient):
    """A page lies where the number at the end of its key says, modulo the size of the pool: writer and reader agree."""

    stores = False

    def __init__(self, connection: dict[str, Any]) -> None:
        self._pool_bytes = int(connection["pool_bytes"])
        address = ("127.0.0.1", int(connection["port"]))
        self._connections = [socket.create_connection(address) for _ in range(CONNECTIONS)]
        for one in self._connections:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._threads = ThreadPoolExecutor(CONNECTIONS - 1)

    def put(self, keys: list[str], addresses: list[int], size_bytes: int) -> Sequence[int]:
        return self._striped(PUT, keys, addresses, size_bytes)

    def get(self, keys: list[str], addresses: list[int], size_bytes: int) -> Sequence[int]:
        return self._striped(GET, keys, addresses, size_bytes)

    def exists(self, keys: list[str], keep: bool) -> Sequence[int]:
        return [True] * len(keys)

    def remove(self, keys: list[str]) -> None:
        pass

    def close(self) -> None:
        self._threads.shutdown()
        for one in self._connections:
            one.close()

    def _striped(self, op: int, keys: list[str], addresses: list[int], size_bytes: int) -> Sequence[int]:
        slots = self._pool_bytes // size_bytes
        offsets = [int(key[-8:], 16) % slots * size_bytes for key in keys]
        stripe = -(-len(keys) // CONNECTIONS)
        jobs = [
            (
                self._connections[i],
                op,
                offsets[i * stripe : (i + 1) * stripe],
                addresses[i * stripe : (i + 1) * stripe],
            )
            for i in range(CONNECTIONS)
        ]
        waiting = [self._threads.submit(self._one, *job, size_bytes) for job in jobs[1:]]
        self._one(*jobs[0], size_bytes)
        for other in waiting:
            other.result()
        return [True] * len(keys)

    def _one(
        self, connection: socket.socket, op: int, offsets: list[int], addresses: list[int], size_bytes: int
    ) -> None:
        head = HEADER.pack(op, len(offsets), size_bytes) + struct.pack(f"<{len(offsets)}Q", *offsets)
        pages = [view(address, size_bytes) for address in addresses]
        if op == PUT:
            send_all(connection, [memoryview(head), *pages])
            receive_all(connection, [memoryview(bytearray(1))])
        else:
            send_all(connection, [memoryview(head)])
            receive_all(connection, pages)


def serve_connection(connection: socket.socket, pool: memoryview) -> None:
    """Answers requests until the client goes away."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = bytearray(HEADER.size)
    while True:
        try:
            receive_all(connection, [memoryview(head)])
        except ConnectionError:
            return
        op, count, size_bytes = HEADER.unpack(head)
        offsets_bytes = bytearray(8 * count)
        receive_all(connection, [memoryview(offsets_bytes)])
        pages = [pool[at : at + size_bytes] for at in struct.unpack(f"<{count}Q", offsets_bytes)]
        if op == PUT:
            receive_all(connection, pages)
            connection.sendall(b"\1")
        else:
            send_all(connection, pages)


def main() -> None:
    port, pool_bytes = map(int, sys.argv[1:])
    pool = memoryview(
        mmap.mmap(-1, pool_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    )
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve_connection, args=(connection, pool), daemon=True).start()


if __name__ == "__main__":
    main()
