"""Peers of a segment or a master that are out to hurt it: what they send, or don't, over many connections.

Each attack is a context manager: its connections are open when it is entered, are opened anew when they are closed, and are
gone when it is left. None of them knows more than a client does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from kvstore_client.protocol import (
    HEADER_BYTES,
    Header,
    HelloRequest,
    Op,
    Role,
    decode_reply,
    request_frame,
)

PIN, LOCATE, GET, PUT, REGISTER = (Op(number) for number in (16, 17, 18, 19, 23))
WHOLE_SHARD = struct.pack("<6H", 0, 0, 0, 1, 0, 1)
TICK_S = 0.2
TIMEOUT_S = 20.0
MIB = 1 << 20


@dataclass(frozen=True)
class Target:
    """Where to, and what is stored there: hashes of pages, to be asked for."""

    port: int
    unix_path: str = ""
    ns: bytes = b"attacked"
    hashes: tuple[bytes, ...] = ()
    host: str = "127.0.0.1"
    role: Role = Role.CLIENT


def key_block(ns: bytes, hashes: Sequence[bytes]) -> bytes:
    """Of pages of pool 0 that are one object each."""
    return ns + struct.pack("<HHI", 0, 1, len(hashes)) + WHOLE_SHARD + b"".join(hashes)


def connect(target: Target, *, unix: bool = False, greet: bool = True) -> socket.socket:
    if unix:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.settimeout(TIMEOUT_S)
        peer.connect(target.unix_path)
    else:
        peer = socket.create_connection((target.host, target.port), timeout=TIMEOUT_S)
    if greet:
        peer.sendall(request_frame(Op.HELLO, 1, HelloRequest(target.role, "", "hostile").encode()))
        header = Header.decode(receive(peer, HEADER_BYTES))
        prefix, _ = decode_reply(receive(peer, header.body_bytes))
        if prefix.status != 0:
            raise ConnectionError(prefix.text)
    return peer


def receive(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := peer.recv(size - len(data))):
            raise ConnectionError("closed")
        data += more
    return data


class Attack:
    """`count` connections that `open` makes, each with `tick` called a few times a second."""

    def __init__(
        self,
        open_one: Callable[[int], socket.socket],
        count: int,
        tick: Callable[[socket.socket], None] = lambda peer: None,
    ) -> None:
        self._open_one, self._count, self._tick = open_one, count, tick
        self._peers: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.opened = 0
        self.refused = 0

    def __enter__(self) -> Attack:
        raise_file_limit(2 * self._count + 512)
        self._fill()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        for peer in self._peers.values():
            peer.close()
        self._selector.close()

    def _fill(self) -> None:
        for number in range(self._count):
            if number in self._peers or self._stopping.is_set():
                continue
            try:
                peer = self._open_one(number)
            except OSError:  # refused, or a limit of this process
                self.refused += 1
                continue
            peer.settimeout(0)
            self._peers[number] = peer
            self._selector.register(peer, selectors.EVENT_READ, number)
            self.opened += 1

    def _run(self) -> None:
        while not self._stopping.wait(TICK_S):
            for key, _ in self._selector.select(0):
                with contextlib.suppress(BlockingIOError, OSError):
                    if self._peers[key.data].recv(1, socket.MSG_PEEK):
                        continue  # a reply that nobody reads
                self._selector.unregister(key.fileobj)
                self._peers.pop(key.data).close()
            for peer in self._peers.values():
                with contextlib.suppress(OSError):
                    self._tick(peer)
            self._fill()


class Flood:
    """Connects and closes as fast as it can, from a few threads."""

    THREADS = 2

    def __init__(self, target: Target) -> None:
        self._target = target
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(self.THREADS)]
        self.opened = 0

    def __enter__(self) -> Flood:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(OSError):
                connect(self._target, greet=False).close()
                self.opened += 1


def raise_file_limit(needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))


# ---- what they do; the frames first


def hashes(count: int) -> list[bytes]:
    noise = os.urandom(32 * count)
    return [noise[32 * i :][:32] for i in range(count)]


def put_head(target: Target, objects: int, object_bytes: int) -> bytes:
    body = struct.pack("<BBHI", 0, 0, 0, 60_000) + key_block(target.ns, hashes(objects))
    body += struct.pack("<I", object_bytes) * objects
    payload_bytes = objects * (object_bytes + 4)
    return Header(PUT, 2, len(body), payload_bytes).encode() + body


def sends(
    target: Target, data: Callable[[], bytes], *, unix: bool = False, greet: bool = True
) -> Callable[[int], socket.socket]:
    def open_one(number: int) -> socket.socket:
        peer = connect(target, unix=unix, greet=greet)
        peer.sendall(data())
        return peer

    return open_one


def one_byte(peer: socket.socket) -> None:
    peer.send(b"\0")


def silent_strangers(target: Target, count: int = 500) -> Attack:
    """Connections that say nothing, not even HELLO."""
    return Attack(sends(target, lambda: b"", greet=False), count)


def half_hellos(target: Target, count: int = 500) -> Attack:
    """Half a header before HELLO, then a byte now and then."""
    head = Header(Op.HELLO, 1, 4096, 0).encode()
    return Attack(sends(target, lambda: head[:12], greet=False), count, one_byte)


def giant_hellos(target: Target, count: int = 500) -> Attack:
    """Announce a HELLO of 16 MiB, and send some of it."""
    frame = Header(Op.HELLO, 1, 16 * MIB, 0).encode() + bytes(60_000)
    return Attack(sends(target, lambda: frame, greet=False), count)


def slow_frames(target: Target, count: int = 500) -> Attack:
    """Greeted, then half a header, then a byte now and then."""
    frame = Header(PIN, 2, 16 * MIB, 0).encode()
    return Attack(sends(target, lambda: frame[:12]), count, one_byte)


def truncated_frames(target: Target, count: int = 500) -> Attack:
    """Greeted, announce a body of 16 MiB and send a little of it, over and over."""
    frame = Header(PIN, 2, 16 * MIB, 0).encode() + bytes(200_000)
    return Attack(sends(target, lambda: frame[: HEADER_BYTES + 100_000]), count, one_byte)


def silent_puts(target: Target, count: int = 16) -> Attack:
    """Announce puts of 64 MiB and send nothing of them."""
    return Attack(sends(target, lambda: put_head(target, 64, MIB)), count)


def stalled_puts(target: Target, count: int = 16) -> Attack:
    """The same, with a first byte; and one object as large as may be."""
    return Attack(sends(target, lambda: put_head(target, 1, 64 * MIB) + b"x"), count)


def trickled_puts(target: Target, count: int = 16) -> Attack:
    """A byte now and then, so that none of them ever stalls."""
    return Attack(sends(target, lambda: put_head(target, 1, 64 * MIB) + b"x"), count, one_byte)


def unread_gets(target: Target, count: int = 16) -> Attack:
    """Ask for everything, over and over, and read nothing."""
    body = bytes(8) + key_block(target.ns, target.hashes) + bytes(4 * len(target.hashes))
    return Attack(sends(target, lambda: request_frame(GET, 2, body)), count)


def endless_pins(target: Target, count: int = 16) -> Attack:
    """Pin everything for as long as may be."""
    body = struct.pack("<II", 60_000, 0) + key_block(target.ns, target.hashes)
    frame = request_frame(PIN, 2, body)
    return Attack(sends(target, lambda: frame), count, lambda peer: peer.sendall(frame))


def endless_holds(target: Target, count: int = 16) -> Attack:
    """Locate everything and never give it back."""
    body = struct.pack("<II", 60_000, 0) + key_block(target.ns, target.hashes)
    frame = request_frame(LOCATE, 2, body)
    return Attack(sends(target, lambda: frame, unix=True), count)


def sparse_buffers(target: Target, count: int = 16, size_bytes: int = 256 * MIB) -> Attack:
    """Register memory that is not there."""

    def open_one(number: int) -> socket.socket:
        peer = connect(target, unix=True)
        descriptor = os.memfd_create("sparse", os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size_bytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            body = struct.pack("<QII", size_bytes, 0, 0)
            socket.send_fds(peer, [request_frame(REGISTER, 2, body)], [descriptor])
        finally:
            os.close(descriptor)
        return peer

    return Attack(open_one, count)


def connect_flood(target: Target) -> Flood:
    """Connections that close at once, as many as there is time for."""
    return Flood(target)


AttackMaker = Callable[[Target], "Attack | Flood"]
ON_ANY_PORT: tuple[AttackMaker, ...] = (
    silent_strangers,
    half_hellos,
    giant_hellos,
    slow_frames,
    connect_flood,
)
ON_DATA_PORT: tuple[AttackMaker, ...] = (
    *ON_ANY_PORT,
    truncated_frames,
    silent_puts,
    stalled_puts,
    trickled_puts,
    unread_gets,
    endless_pins,
    endless_holds,
    sparse_buffers,
)


def resident_anonymous_bytes(pid: int) -> int:
    """Memory of a process that is its own: without the pool, which is shared, and without what is mapped of files."""
    for line in _status(pid):
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no RssAnon of process {pid}")


def _status(pid: int) -> Iterator[str]:
    with open(f"/proc/{pid}/status") as status:
        yield from status
