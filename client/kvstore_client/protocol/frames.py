"""Frames of docs/protocol.md, and what their bodies are taken apart with. Decoding raises `WireError`, whose `status`
is what to answer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from kvstore_client.protocol.codes import (
    BODY_BYTES_MAX,
    FLAG_REPLY,
    FRAME_VERSION,
    MAGIC,
    PAYLOAD_BYTES_MAX,
    Status,
    WireError,
)

HEADER = struct.Struct("<IBBHIIQ")
PREFIX = struct.Struct("<HHIQ")


@dataclass(frozen=True)
class Header:
    op: int
    request_id: int = 0
    body_bytes: int = 0
    payload_bytes: int = 0
    flags: int = 0
    version: int = FRAME_VERSION

    @property
    def is_reply(self) -> bool:
        return bool(self.flags & FLAG_REPLY)

    def encode(self) -> bytes:
        return HEADER.pack(
            MAGIC, self.version, self.op, self.flags, self.request_id, self.body_bytes, self.payload_bytes
        )

    @staticmethod
    def decode(data: bytes | memoryview, offset: int = 0) -> Header:
        """Raises WireError when this is no frame of ours or is over a cap: the connection is then beyond
        repair."""
        magic, version, op, flags, request_id, body_bytes, payload_bytes = HEADER.unpack_from(data, offset)
        if magic != MAGIC:
            raise WireError(Status.BAD_REQUEST, "not a kvstore frame (bad magic)")
        if body_bytes > BODY_BYTES_MAX:
            raise WireError(
                Status.TOO_LARGE, f"body of {body_bytes} bytes is over the cap of {BODY_BYTES_MAX}"
            )
        if payload_bytes > PAYLOAD_BYTES_MAX:
            raise WireError(
                Status.TOO_LARGE, f"payload of {payload_bytes} bytes is over the cap of {PAYLOAD_BYTES_MAX}"
            )
        return Header(op, request_id, body_bytes, payload_bytes, flags, version)


def request_frame(op: int, request_id: int, body: bytes, *, version: int = FRAME_VERSION) -> bytes:
    """A whole request without payload."""
    return Header(op, request_id, len(body), 0, 0, version).encode() + body


@dataclass(frozen=True)
class ReplyPrefix:
    status: Status
    text: str = ""
    map_epoch: int = 0

    def encode(self) -> bytes:
        text = self.text.encode()
        return PREFIX.pack(self.status, 0, len(text), self.map_epoch) + text


def reply_frame(op: int, request_id: int, prefix: ReplyPrefix, fields: bytes = b"") -> bytes:
    """A whole reply without payload."""
    body = prefix.encode() + fields
    return Header(op, request_id, len(body), 0, FLAG_REPLY).encode() + body


def decode_reply(body: bytes) -> tuple[ReplyPrefix, bytes]:
    """(prefix, the reply's own fields)"""
    reader = Reader(body)
    status, _, text_bytes, map_epoch = reader.unpack(PREFIX, "reply prefix")
    text = reader.text(text_bytes, "text")
    try:
        return ReplyPrefix(Status(status), text, map_epoch), reader.rest()
    except ValueError:
        raise WireError(Status.BAD_REQUEST, f"unknown status {status}") from None


class Reader:
    """Takes fields off a body in order, checking bounds."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def take(self, size: int, field: str) -> bytes:
        end = self._at + size
        if end > len(self._body):
            left = len(self._body) - self._at
            raise WireError(
                Status.BAD_REQUEST, f"body too short for {field}: {size} bytes wanted, {left} left"
            )
        taken = self._body[self._at : end]
        self._at = end
        return taken

    def unpack(self, layout: struct.Struct, field: str) -> tuple[int, ...]:
        return layout.unpack(self.take(layout.size, field))

    def text(self, size: int, field: str) -> str:
        try:
            return self.take(size, field).decode()
        except UnicodeDecodeError:
            raise WireError(Status.BAD_REQUEST, f"{field} is not UTF-8") from None

    def u32s(self, count: int, field: str) -> tuple[int, ...]:
        return struct.unpack(f"<{count}I", self.take(4 * count, field))

    @property
    def left(self) -> int:
        return len(self._body) - self._at

    def rest(self) -> bytes:
        return self.take(len(self._body) - self._at, "rest")


def u32s(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def checked_count(count: int, cap: int, what: str) -> int:
    if count > cap:
        raise WireError(Status.TOO_LARGE, f"{count} {what} is over the cap of {cap} a request")
    return count


def checked_bytes(value: bytes, size: int, what: str) -> bytes:
    if len(value) != size:
        raise WireError(Status.BAD_REQUEST, f"{what} has {size} bytes, not {len(value)}")
    return value
