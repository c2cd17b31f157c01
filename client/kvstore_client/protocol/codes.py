"""Codes and caps of docs/protocol.md."""

from __future__ import annotations

from enum import IntEnum

MAGIC = 0x3153564B  # "KVS1" in memory order
# Of the protocol, agreed on in HELLO and at attaching. 2: fingerprints are made of the whole page hash.
VERSION_MIN = 2
VERSION_MAX = 2
# Of the form of frames, in each header: peers of all protocol versions can read each other's HELLO, and refuse it.
FRAME_VERSION = 1
HEADER_BYTES = 24
FLAG_REPLY = 1

BODY_BYTES_MAX = 16 << 20
PAYLOAD_BYTES_MAX = 2 << 30
KEYS_MAX = 65_536
ENTRIES_MAX = 131_072
REPLICAS_MAX = 4  # copies of an object that LOOKUP names and PLACE asks for
SHARDS_MAX = 64
OBJECT_BYTES_MAX = 1 << 30
FETCH_ENTRIES_MAX = 1_024
TOKEN_BYTES_MAX = 1_024
NAME_BYTES_MAX = 255
IDENTITY_BYTES_MAX = 64 << 10
PIN_MS_MAX = 60_000
KEEP_TTL_MS_MAX = 24 * 60 * 60 * 1000
KEEP_TTL_MS_DEFAULT = 30 * 60 * 1000  # what a TTL of 0 stands for

NAMESPACE_BYTES = 8
FINGERPRINT_BYTES = 16
PEER_ID_BYTES = 16
ANY_PEER = bytes(PEER_ID_BYTES)
NO_SEGMENT = 0xFFFFFFFF
ALREADY_THERE = 0xFFFFFFFE
OTHER_LENGTH = 0xFFFFFFFD


class Op(IntEnum):
    HELLO = 1
    OPEN_NAMESPACE = 2
    MAP = 3
    EXISTS = 4
    LOOKUP = 5
    PLACE = 6
    BUMP_NAMESPACE = 7
    PIN = 16
    LOCATE = 17
    GET = 18
    PUT = 19
    UNPIN = 20
    REMOVE = 21
    ATTACH = 22
    REGISTER = 23
    UNREGISTER = 24
    PULL = 25
    SUSPECT = 26
    RDMA_CONNECT = 27
    RDMA_REGISTER = 28
    COMMIT = 29
    KEEP = 30
    FETCH = 31
    LINK = 32
    JOURNAL = 33
    INVENTORY = 34
    HEARTBEAT = 35
    ACK = 36
    REQUEST_INVENTORY = 37
    ENTRIES_REFUSED = 38


class Status(IntEnum):
    OK = 0
    MISS = 1
    EXISTS = 2
    NO_SPACE = 3
    CONFLICT = 4
    DIGEST_MISMATCH = 5
    NOT_COMMITTED = 6
    STALE_NAMESPACE = 7
    TIMEOUT = 8
    UNAVAILABLE = 9
    BAD_REQUEST = 10
    UNSUPPORTED_VERSION = 11
    UNAUTHORIZED = 12
    TOO_LARGE = 13
    LENGTH_MISMATCH = 14
    INTERNAL = 15
    NOT_LEADER = 16
    WRONG_PEER = 17


class Role(IntEnum):
    CLIENT = 1
    SEGMENT = 2
    TOOL = 3


class SegmentState(IntEnum):
    LIVE = 1
    SUSPECT = 2
    DRAINING = 3
    GONE = 4


class WireError(ValueError):
    """A frame or body that can't be what it should be."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status
