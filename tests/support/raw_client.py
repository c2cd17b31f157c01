"""A data-port client of a few lines over the plain-Python codec: for tests that need one frame, or half of
one.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType

from kvstore_client._native import crc32c
from kvstore_client.protocol import HEADER_BYTES, Header, HelloRequest, Op, ReplyPrefix, Role, decode_reply
from support.wire import (
    STRING_POOL,
    WHOLE_SHARD,
    GetReply,
    GetRequest,
    KeyBlock,
    PutRequest,
    StatusesReply,
)

TIMEOUT_S = 10.0


class RawClient:
    """One blocking connection to a segment, past its HELLO."""

    def __init__(self, port: int, host: str = "127.0.0.1", token: str = "") -> None:
        self._socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self._next_id = 0
        prefix, _, _ = self.call(Op.HELLO, HelloRequest(role=Role.TOOL, token=token).encode())
        assert prefix.status == 0, prefix

    def put(
        self, keys: KeyBlock, values: list[bytes], ack_committed: bool, timeout_ms: int = 1000
    ) -> tuple[int, bytes]:
        """(status of the request, one status an entry)."""
        body = PutRequest(keys, tuple(map(len, values)), ack_committed, timeout_ms).encode()
        prefix, fields, _ = self.call(Op.PUT, body, payload_of(values))
        return prefix.status, StatusesReply.decode(fields).statuses if fields else b""

    def get(self, keys: KeyBlock) -> list[bytes | None]:
        body = GetRequest(keys, (0,) * keys.entry_count).encode()
        prefix, fields, payload = self.call(Op.GET, body)
        assert prefix.status == 0, prefix
        values: list[bytes | None] = []
        at = 0
        for entry in GetReply.decode(fields).entries:
            if entry.status != 0:
                values.append(None)
                continue
            values.append(payload[at : at + entry.length])
            at += entry.length
            assert crc32c(values[-1] or b"") == entry.digest
        return values

    def call(self, op: Op, body: bytes, payload: bytes = b"") -> tuple[ReplyPrefix, bytes, bytes]:
        """One request and its reply: (prefix, own fields, payload)."""
        self.send(op, body, payload)
        header = Header.decode(self._receive(HEADER_BYTES))
        assert header.is_reply and header.request_id == self._next_id
        prefix, fields = decode_reply(self._receive(header.body_bytes))
        return prefix, fields, self._receive(header.payload_bytes)

    def send(self, op: Op, body: bytes, payload: bytes, payload_sent: int | None = None) -> None:
        """Sends a request, or its frame with only the first `payload_sent` bytes of the payload."""
        self._next_id += 1
        frame = Header(op, self._next_id, len(body), len(payload)).encode()
        self._socket.sendall(frame + body + payload[:payload_sent])

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _receive(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise ConnectionError("the segment closed the connection")
            parts += part
        return bytes(parts)


def key_block(ns: bytes, *names: str) -> KeyBlock:
    """Keys named for people: the hash is the name, padded."""
    return KeyBlock(ns, STRING_POOL, (WHOLE_SHARD,), tuple(name.encode().ljust(32, b"\0") for name in names))


def payload_of(values: list[bytes]) -> bytes:
    return b"".join(values) + struct.pack(f"<{len(values)}I", *map(crc32c, values))
