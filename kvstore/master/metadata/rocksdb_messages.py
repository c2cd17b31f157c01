"""What the master and the process that has RocksDB say to each other, and the form of a commit.

Every frame is u32 bytes behind it, u8 code, body. The process speaks first (HELLO), then answers each request with one frame, in
order. It imports this module and little else, so that it starts in milliseconds.
"""

from __future__ import annotations

import struct
from enum import IntEnum

HEAD = struct.Struct("<IB")
SEQUENCE = struct.Struct("<Q")
SCAN_ID = struct.Struct("<I")
_PAIR = struct.Struct("<HI")
_OP = struct.Struct("<BHI")

# Of a frame. The largest are a page of a scan and a commit at its bounds.
FRAME_BYTES_MAX = 16 << 20
# A page of a scan ends after so many records even if they are small: unpacking one takes a few milliseconds at most.
PAGE_RECORDS_MAX = 2048


class Request(IntEnum):
    APPLY = 1  # u64 sequence of the last commit, then the operations of all of them
    CHECKPOINT = 2  # reply: u64 sequence up to which everything is durable
    GET = 3  # a key; reply: u8 whether it is there, value
    SCAN = 4  # u32 number of the scan, prefix
    NEXT = 5  # u32; reply: a page, empty at the end
    END_SCAN = 6  # u32


class Reply(IntEnum):
    OK = 0
    FAILED = 1  # text. The process goes on after a read, and ends after a write
    HELLO = 2  # u64 sequence that is durable, u8 read-only, text: why it is read-only
    CAN_NOT_OPEN = 3  # text


class OpKind(IntEnum):
    PUT = 1  # key, value
    DELETE = 2  # key, nothing
    DELETE_RANGE = 3  # start, end


def frame(code: int, body: bytes = b"") -> bytes:
    return HEAD.pack(len(body) + 1, code) + body


def encode_op(kind: OpKind, first: bytes, second: bytes = b"") -> bytes:
    """Encoded operations can be joined."""
    return _OP.pack(kind, len(first), len(second)) + first + second


def decode_ops(data: bytes, at: int = 0) -> list[tuple[int, bytes, bytes]]:
    """(kind, key or start, value or end) of each. ValueError unless the data is whole operations."""
    ops = []
    while at < len(data):
        if len(data) - at < _OP.size:
            raise ValueError("an operation is cut short")
        kind, first_bytes, second_bytes = _OP.unpack_from(data, at)
        middle = at + _OP.size + first_bytes
        end = middle + second_bytes
        if end > len(data):
            raise ValueError("an operation is cut short")
        ops.append((kind, data[at + _OP.size : middle], data[middle:end]))
        at = end
    return ops


def encode_pair(key: bytes, value: bytes) -> bytes:
    return _PAIR.pack(len(key), len(value)) + key + value


def decode_pairs(data: bytes) -> list[tuple[bytes, bytes]]:
    """ValueError unless the data is whole pairs."""
    pairs = []
    at = 0
    while at < len(data):
        if len(data) - at < _PAIR.size:
            raise ValueError("a pair is cut short")
        key_bytes, value_bytes = _PAIR.unpack_from(data, at)
        middle = at + _PAIR.size + key_bytes
        end = middle + value_bytes
        if end > len(data):
            raise ValueError("a pair is cut short")
        pairs.append((data[at + _PAIR.size : middle], data[middle:end]))
        at = end
    return pairs
