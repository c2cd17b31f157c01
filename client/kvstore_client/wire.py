"""Frames, codes, caps and directory-port messages of docs/protocol.md, in plain Python.

The data port's messages are in `wire_data`, the journal's in `wire_journal`. Every message is a frozen
dataclass with `encode() -> bytes` (the body; of a reply: its own fields, after the prefix) and
`decode(body)`. Decoding raises `WireError`, whose `status` is what to answer; bytes after the known fields
are ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

MAGIC = 0x3153564B  # "KVS1" in memory order
VERSION_MIN = 1
VERSION_MAX = 1
HEADER_BYTES = 24
REPLY_PREFIX_BYTES = 16
FLAG_REPLY = 1

BODY_BYTES_MAX = 16 << 20
PAYLOAD_BYTES_MAX = 2 << 30
KEYS_MAX = 65_536
ENTRIES_MAX = 131_072
SHARDS_MAX = 64
OBJECT_BYTES_MAX = 1 << 30
TEXT_BYTES_MAX = 256
TOKEN_BYTES_MAX = 1_024
NAME_BYTES_MAX = 255
IDENTITY_BYTES_MAX = 64 << 10
PULL_PIECES_MAX = 2 << 20
PIN_MS_MAX = 60_000
REPLICAS_MAX = 4

NAMESPACE_BYTES = 8
FINGERPRINT_BYTES = 16
PEER_ID_BYTES = 16
ANY_PEER = bytes(PEER_ID_BYTES)
NO_SEGMENT = 0xFFFFFFFF
ALREADY_THERE = 0xFFFFFFFE
OTHER_LENGTH = 0xFFFFFFFD
FEATURE_UNIX = 1
FEATURE_RDMA = 2


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


# ---- frame -------------------------------------------------------------------------------------------------

HEADER = struct.Struct("<IBBHIIQ")
PREFIX = struct.Struct("<HHIQ")


@dataclass(frozen=True)
class Header:
    op: int
    request_id: int = 0
    body_bytes: int = 0
    payload_bytes: int = 0
    flags: int = 0
    version: int = VERSION_MAX

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


def request_frame(op: int, request_id: int, body: bytes, *, version: int = VERSION_MAX) -> bytes:
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


# ---- HELLO -------------------------------------------------------------------------------------------------

_HELLO = struct.Struct("<BBBBHH16s")
_HELLO_REPLY = struct.Struct("<B3xIIQ16sI")


@dataclass(frozen=True)
class HelloRequest:
    role: int
    token: str = ""
    name: str = ""
    expected_peer: bytes = ANY_PEER
    min_version: int = VERSION_MIN
    max_version: int = VERSION_MAX

    def encode(self) -> bytes:
        token, name = self.token.encode(), self.name.encode()
        checked_count(len(token), TOKEN_BYTES_MAX, "token bytes")
        checked_count(len(name), NAME_BYTES_MAX, "name bytes")
        peer = checked_bytes(self.expected_peer, PEER_ID_BYTES, "expected_peer")
        head = _HELLO.pack(self.min_version, self.max_version, self.role, 0, len(token), len(name), peer)
        return head + token + name

    @staticmethod
    def decode(body: bytes) -> HelloRequest:
        reader = Reader(body)
        low, high, role, _, token_bytes, name_bytes, peer = _HELLO.unpack(reader.take(_HELLO.size, "HELLO"))
        checked_count(token_bytes, TOKEN_BYTES_MAX, "token bytes")
        checked_count(name_bytes, NAME_BYTES_MAX, "name bytes")
        token, name = reader.text(token_bytes, "token"), reader.text(name_bytes, "name")
        return HelloRequest(role, token, name, peer, low, high)


@dataclass(frozen=True)
class HelloReply:
    version: int
    peer_id: bytes
    max_keys: int = KEYS_MAX
    max_body_bytes: int = BODY_BYTES_MAX
    max_payload_bytes: int = PAYLOAD_BYTES_MAX
    features: int = 0

    def encode(self) -> bytes:
        return _HELLO_REPLY.pack(
            self.version,
            self.max_keys,
            self.max_body_bytes,
            self.max_payload_bytes,
            checked_bytes(self.peer_id, PEER_ID_BYTES, "peer_id"),
            self.features,
        )

    @staticmethod
    def decode(fields: bytes) -> HelloReply:
        taken = Reader(fields).take(_HELLO_REPLY.size, "HELLO reply")
        version, keys, body_bytes, payload_bytes, peer, features = _HELLO_REPLY.unpack(taken)
        return HelloReply(version, peer, keys, body_bytes, payload_bytes, features)


# ---- directory port ----------------------------------------------------------------------------------------

_OPEN = struct.Struct("<IHH")
_NAMESPACE_REPLY = struct.Struct("<8sII")
_U64 = struct.Struct("<Q")
_TWO_U32 = struct.Struct("<II")
_EXISTS = struct.Struct("<8sII")
_LOOKUP = struct.Struct("<8sIB3x")
_PLACE = struct.Struct("<8sII")
_MAP_RECORD = struct.Struct("<IB3x16s16sQQHHHH")


def _fingerprint_count(fingerprints: bytes) -> int:
    if len(fingerprints) % FINGERPRINT_BYTES:
        raise WireError(Status.BAD_REQUEST, "fingerprints come in 16 bytes each")
    return checked_count(len(fingerprints) // FINGERPRINT_BYTES, ENTRIES_MAX, "entries")


@dataclass(frozen=True)
class OpenNamespaceRequest:
    identity: bytes
    name: str = ""

    def encode(self) -> bytes:
        name = self.name.encode()
        checked_count(len(self.identity), IDENTITY_BYTES_MAX, "identity bytes")
        checked_count(len(name), NAME_BYTES_MAX, "name bytes")
        return _OPEN.pack(len(self.identity), len(name), 0) + self.identity + name

    @staticmethod
    def decode(body: bytes) -> OpenNamespaceRequest:
        reader = Reader(body)
        identity_bytes, name_bytes, _ = reader.unpack(_OPEN, "OPEN_NAMESPACE")
        checked_count(identity_bytes, IDENTITY_BYTES_MAX, "identity bytes")
        checked_count(name_bytes, NAME_BYTES_MAX, "name bytes")
        return OpenNamespaceRequest(reader.take(identity_bytes, "identity"), reader.text(name_bytes, "name"))


@dataclass(frozen=True)
class NamespaceReply:
    """Of OPEN_NAMESPACE and BUMP_NAMESPACE."""

    ns: bytes
    epoch: int

    def encode(self) -> bytes:
        return _NAMESPACE_REPLY.pack(checked_bytes(self.ns, NAMESPACE_BYTES, "namespace id"), self.epoch, 0)

    @staticmethod
    def decode(fields: bytes) -> NamespaceReply:
        ns, epoch, _ = _NAMESPACE_REPLY.unpack(Reader(fields).take(_NAMESPACE_REPLY.size, "namespace"))
        return NamespaceReply(ns, epoch)


@dataclass(frozen=True)
class BumpNamespaceRequest:
    ns: bytes

    def encode(self) -> bytes:
        return checked_bytes(self.ns, NAMESPACE_BYTES, "namespace id")

    @staticmethod
    def decode(body: bytes) -> BumpNamespaceRequest:
        return BumpNamespaceRequest(Reader(body).take(NAMESPACE_BYTES, "namespace id"))


@dataclass(frozen=True)
class MapRequest:
    known_epoch: int = 0

    def encode(self) -> bytes:
        return _U64.pack(self.known_epoch)

    @staticmethod
    def decode(body: bytes) -> MapRequest:
        return MapRequest(*Reader(body).unpack(_U64, "known_epoch"))


@dataclass(frozen=True)
class MapRecord:
    index: int
    state: int
    segment_id: bytes
    pool_id: bytes
    capacity_bytes: int
    used_bytes: int
    host: str
    tcp_port: int
    unix_path: str = ""

    def encode(self) -> bytes:
        host, unix_path = self.host.encode(), self.unix_path.encode()
        head = _MAP_RECORD.pack(
            self.index,
            self.state,
            checked_bytes(self.segment_id, PEER_ID_BYTES, "segment_id"),
            checked_bytes(self.pool_id, PEER_ID_BYTES, "pool_id"),
            self.capacity_bytes,
            self.used_bytes,
            len(host),
            self.tcp_port,
            len(unix_path),
            0,
        )
        return head + host + unix_path

    @staticmethod
    def take(reader: Reader) -> MapRecord:
        index, state, segment, pool, capacity, used, host_bytes, port, unix_bytes, _ = _MAP_RECORD.unpack(
            reader.take(_MAP_RECORD.size, "MAP record")
        )
        host, unix_path = reader.text(host_bytes, "host"), reader.text(unix_bytes, "unix_path")
        return MapRecord(index, state, segment, pool, capacity, used, host, port, unix_path)


@dataclass(frozen=True)
class MapReply:
    segments: tuple[MapRecord, ...]

    def encode(self) -> bytes:
        return _TWO_U32.pack(len(self.segments), 0) + b"".join(s.encode() for s in self.segments)

    @staticmethod
    def decode(fields: bytes) -> MapReply:
        reader = Reader(fields)
        count, _ = reader.unpack(_TWO_U32, "MAP reply")
        checked_count(count, len(fields) // _MAP_RECORD.size + 1, "MAP records")
        return MapReply(tuple(MapRecord.take(reader) for _ in range(count)))


@dataclass(frozen=True)
class ExistsRequest:
    ns: bytes
    fingerprints: bytes

    def encode(self) -> bytes:
        return _EXISTS.pack(self.ns, _fingerprint_count(self.fingerprints), 0) + self.fingerprints

    @staticmethod
    def decode(body: bytes) -> ExistsRequest:
        reader = Reader(body)
        ns, count, _ = _EXISTS.unpack(reader.take(_EXISTS.size, "EXISTS"))
        checked_count(count, ENTRIES_MAX, "entries")
        return ExistsRequest(ns, reader.take(count * FINGERPRINT_BYTES, "fingerprints"))


@dataclass(frozen=True)
class ExistsReply:
    """present[i]: entry i is there."""

    present: tuple[bool, ...]

    def encode(self) -> bytes:
        bits = bytearray((len(self.present) + 7) // 8)
        for i, there in enumerate(self.present):
            bits[i // 8] |= there << (i % 8)
        return _TWO_U32.pack(len(self.present), 0) + bytes(bits)

    @staticmethod
    def decode(fields: bytes) -> ExistsReply:
        reader = Reader(fields)
        count, _ = reader.unpack(_TWO_U32, "EXISTS reply")
        bits = reader.take((count + 7) // 8, "bits")
        return ExistsReply(tuple(bool(bits[i // 8] >> (i % 8) & 1) for i in range(count)))


@dataclass(frozen=True)
class LookupRequest:
    ns: bytes
    fingerprints: bytes
    replicas: int = 1

    def encode(self) -> bytes:
        return _LOOKUP.pack(self.ns, _fingerprint_count(self.fingerprints), self.replicas) + self.fingerprints

    @staticmethod
    def decode(body: bytes) -> LookupRequest:
        reader = Reader(body)
        ns, count, replicas = _LOOKUP.unpack(reader.take(_LOOKUP.size, "LOOKUP"))
        checked_count(count, ENTRIES_MAX, "entries")
        if not 1 <= replicas <= REPLICAS_MAX:
            raise WireError(Status.BAD_REQUEST, f"replicas is {replicas}, must be 1 to {REPLICAS_MAX}")
        return LookupRequest(ns, reader.take(count * FINGERPRINT_BYTES, "fingerprints"), replicas)


@dataclass(frozen=True)
class LookupReply:
    """segments[r * count + i]: holder r of entry i, or NO_SEGMENT; lengths[i] is 0 when it is absent."""

    replicas: int
    segments: tuple[int, ...]
    lengths: tuple[int, ...]

    def encode(self) -> bytes:
        return _TWO_U32.pack(len(self.lengths), self.replicas) + u32s(self.segments) + u32s(self.lengths)

    @staticmethod
    def decode(fields: bytes) -> LookupReply:
        reader = Reader(fields)
        count, replicas = reader.unpack(_TWO_U32, "LOOKUP reply")
        segments = reader.u32s(count * replicas, "segments")
        return LookupReply(replicas, segments, reader.u32s(count, "lengths"))


@dataclass(frozen=True)
class PlaceRequest:
    ns: bytes
    lengths: tuple[int, ...]
    fingerprints: bytes
    preferred: int = NO_SEGMENT

    def encode(self) -> bytes:
        if _fingerprint_count(self.fingerprints) != len(self.lengths):
            raise WireError(Status.BAD_REQUEST, "PLACE needs one length a fingerprint")
        head = _PLACE.pack(self.ns, len(self.lengths), self.preferred)
        return head + u32s(self.lengths) + self.fingerprints

    @staticmethod
    def decode(body: bytes) -> PlaceRequest:
        reader = Reader(body)
        ns, count, preferred = _PLACE.unpack(reader.take(_PLACE.size, "PLACE"))
        checked_count(count, ENTRIES_MAX, "entries")
        lengths = reader.u32s(count, "lengths")
        if lengths and max(lengths) > OBJECT_BYTES_MAX:
            raise WireError(Status.TOO_LARGE, f"an object is over the cap of {OBJECT_BYTES_MAX} bytes")
        return PlaceRequest(ns, lengths, reader.take(count * FINGERPRINT_BYTES, "fingerprints"), preferred)


@dataclass(frozen=True)
class PlaceReply:
    """An index of the MAP, NO_SEGMENT (no room), ALREADY_THERE or OTHER_LENGTH, an entry."""

    segments: tuple[int, ...]

    def encode(self) -> bytes:
        return _TWO_U32.pack(len(self.segments), 0) + u32s(self.segments)

    @staticmethod
    def decode(fields: bytes) -> PlaceReply:
        reader = Reader(fields)
        count, _ = reader.unpack(_TWO_U32, "PLACE reply")
        return PlaceReply(reader.u32s(count, "segments"))
