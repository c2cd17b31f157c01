"""A data-port peer built from `struct` alone: it shares no code with the implementation under test."""

import array
import hashlib
import random
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvstore_client import _native

MAGIC = 0x3153564B
HELLO, PIN, LOCATE, GET, PUT, UNPIN, REMOVE = 1, 16, 17, 18, 19, 20, 21
ATTACH, REGISTER, UNREGISTER, PULL, SUSPECT = 22, 23, 24, 25, 26
OK, MISS, EXISTS, NO_SPACE, CONFLICT, DIGEST_MISMATCH, NOT_COMMITTED, STALE_NAMESPACE = range(8)
TIMEOUT, UNAVAILABLE, BAD_REQUEST, UNSUPPORTED_VERSION, UNAUTHORIZED, TOO_LARGE, LENGTH_MISMATCH = range(
    8, 15
)
WRONG_PEER = 17
WHOLE = struct.pack("<6H", 0, 0, 0, 1, 0, 1)
NS = b"namespc1"
MIB = 1 << 20
POOL_ID = b"pool-id-16-bytes"


def make_store(capacity_bytes: int = 16 * MIB, **options: object) -> _native.SegmentStore:
    return _native.SegmentStore(capacity_bytes=capacity_bytes, pool_id=POOL_ID, **options)  # type: ignore[arg-type]


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.002)


def values(count: int, size: int, seed: int = 1) -> list[bytes]:
    """Random bytes of about `size`, each of another length than its neighbours."""
    rng = random.Random(seed)
    return [rng.randbytes(size + i % 7) for i in range(count)]


@dataclass
class Reply:
    """One reply frame: status and text of the prefix, the reply's own fields, payload, descriptors passed."""

    op: int
    request_id: int
    status: int
    text: str
    fields: bytes
    payload: bytes
    descriptors: list[int] = field(default_factory=list)

    @property
    def statuses(self) -> list[int]:
        (count,) = struct.unpack_from("<I", self.fields)
        return list(self.fields[8 : 8 + count])


@dataclass
class Located:
    """One LOCATE entry."""

    offset: int
    generation: int
    length: int
    digest: int
    slot: int
    status: int


def hashes(*names: str) -> list[bytes]:
    return [hashlib.sha256(name.encode()).digest() for name in names]


def key_block(keys: list[bytes], ns: bytes = NS, pool: int = 0, shards: bytes = WHOLE) -> bytes:
    return ns + struct.pack("<HHI", pool, len(shards) // 12, len(keys)) + shards + b"".join(keys)


def frame(op: int, body: bytes, payload: bytes = b"", request_id: int = 1) -> bytes:
    return struct.pack("<IBBHIIQ", MAGIC, 1, op, 0, request_id, len(body), len(payload)) + body + payload


def put_frame(
    keys: list[bytes],
    values: list[bytes],
    *,
    ack: int = 0,
    timeout_ms: int = 1000,
    ns: bytes = NS,
    digests: list[int] | None = None,
    flags: int = 0,
    extra: bytes = b"",
) -> bytes:
    digests = [_native.crc32c(value) for value in values] if digests is None else digests
    body = struct.pack("<BBHI", ack, flags, 0, timeout_ms) + key_block(keys, ns)
    body += struct.pack(f"<{len(values)}I", *map(len, values)) + extra
    return frame(PUT, body, b"".join(values) + struct.pack(f"<{len(digests)}I", *digests))


class Peer:
    """One connection; blocking, with a deadline on every receive."""

    def __init__(self, address: tuple[str, int] | str, *, token: str = "", greet: bool = True) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        self.socket.connect(address)
        if greet:
            reply = self.hello(token=token)
            assert reply.status == OK, reply.text

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def hello(
        self, *, token: str = "", versions: tuple[int, int] = (2, 2), expected_peer: bytes = bytes(16)
    ) -> Reply:
        secret = token.encode()
        body = struct.pack("<BBBBHH", *versions, 1, 0, len(secret), 4) + expected_peer + secret + b"test"
        return self.call(HELLO, body)

    def call(self, op: int, body: bytes, payload: bytes = b"", request_id: int = 1) -> Reply:
        self.socket.sendall(frame(op, body, payload, request_id))
        return self.reply()

    def call_with_descriptor(self, op: int, body: bytes, descriptor: int) -> Reply:
        socket.send_fds(self.socket, [frame(op, body)], [descriptor])
        return self.reply()

    def reply(self) -> Reply:
        descriptors = array.array("i")
        head = self._receive(24, descriptors)
        magic, version, op, flags, request_id, body_bytes, payload_bytes = struct.unpack("<IBBHIIQ", head)
        assert (magic, version, flags) == (MAGIC, 1, 1)
        body = self._receive(body_bytes, descriptors)
        payload = self._receive(payload_bytes, descriptors)
        status, _, text_bytes, _ = struct.unpack_from("<HHIQ", body)
        text = body[16 : 16 + text_bytes].decode()
        return Reply(op, request_id, status, text, body[16 + text_bytes :], payload, list(descriptors))

    def _receive(self, size: int, descriptors: "array.array[int]") -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk, ancillary, _, _ = self.socket.recvmsg(
                min(size - len(data), 1 << 20), socket.CMSG_SPACE(16)
            )
            for level, kind, values in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    descriptors.frombytes(values[: len(values) - len(values) % 4])
            if not chunk:
                raise EOFError(f"closed after {len(data)} of {size} bytes")
            data += chunk
        return bytes(data)

    def is_closed(self) -> bool:
        """Whether the server ends the connection (it has until the socket's timeout to do so)."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionResetError:
            pass
        return True

    # ---- whole operations

    def put(self, keys: list[bytes], values: list[bytes], **options: object) -> Reply:
        self.socket.sendall(put_frame(keys, values, **options))  # type: ignore[arg-type]
        return self.reply()

    def pin(self, keys: list[bytes], pin_ms: int = 0, ns: bytes = NS) -> list[int]:
        return self.call(PIN, struct.pack("<II", pin_ms, 0) + key_block(keys, ns)).statuses

    def get(
        self, keys: list[bytes], expected: list[int] | None = None, ns: bytes = NS
    ) -> list[tuple[int, bytes]]:
        """(status, bytes) an entry; checks the digests of what came."""
        lengths = expected or [0] * len(keys)
        reply = self.call(GET, bytes(8) + key_block(keys, ns) + struct.pack(f"<{len(keys)}I", *lengths))
        assert reply.status == OK, reply.text
        out: list[tuple[int, bytes]] = []
        at = 0
        for i in range(len(keys)):
            status, algorithm, _, length, digest, _ = struct.unpack_from("<BBHIII", reply.fields, 8 + 16 * i)
            if status != OK:
                out.append((status, b""))
                continue
            value = reply.payload[at : at + length]
            at += length
            assert (algorithm, _native.crc32c(value)) == (1, digest)
            out.append((status, value))
        assert at == len(reply.payload)
        return out

    def remove(self, keys: list[bytes], *, ack: int = 0, timeout_ms: int = 1000) -> Reply:
        return self.call(REMOVE, struct.pack("<B3xI", ack, timeout_ms) + key_block(keys))

    def suspect(self, keys: list[bytes]) -> list[int]:
        return self.call(SUSPECT, key_block(keys)).statuses

    def locate(self, keys: list[bytes], hold_ms: int = 10_000, request_id: int = 7) -> list[Located]:
        reply = self.call(LOCATE, struct.pack("<II", hold_ms, 0) + key_block(keys), request_id=request_id)
        assert reply.status == OK, reply.text
        return [
            Located(*struct.unpack_from("<QQIIIB", reply.fields, 8 + 32 * i)[:6]) for i in range(len(keys))
        ]

    def unpin(self, locate_id: int) -> None:
        self.socket.sendall(frame(UNPIN, struct.pack("<I", locate_id)))
