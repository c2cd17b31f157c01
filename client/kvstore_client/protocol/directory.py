"""Messages that a master's directory port takes apart in Python; those of the data path are the native module's.

Each is a frozen dataclass with `encode() -> bytes` (the body; of a reply: its own fields, after the prefix) and
`decode(body)`; bytes after the known fields are ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvstore_client.protocol.codes import (
    ANY_PEER,
    BODY_BYTES_MAX,
    IDENTITY_BYTES_MAX,
    KEYS_MAX,
    NAME_BYTES_MAX,
    NAMESPACE_BYTES,
    PAYLOAD_BYTES_MAX,
    PEER_ID_BYTES,
    TOKEN_BYTES_MAX,
    VERSION_MAX,
    VERSION_MIN,
)
from kvstore_client.protocol.frames import Reader, checked_bytes, checked_count

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
_MAP_RECORD = struct.Struct("<IB3x16s16sQQHHHH")
_MAP_USED_AT = struct.calcsize("<IB3x16s16sQ")


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


class EncodedMap:
    """The fields of a MAP reply, encoded once; how full the segments are is put in anew whenever it has changed."""

    def __init__(self, segments: Sequence[MapRecord]) -> None:
        self._fields = bytearray(_TWO_U32.pack(len(segments), 0))
        self._used_at: list[tuple[int, int]] = []  # index of a segment, where its used_bytes are
        for segment in segments:
            self._used_at.append((segment.index, len(self._fields) + _MAP_USED_AT))
            self._fields += segment.encode()

    def refresh(self, used_bytes: Mapping[int, int]) -> bytes:
        """The fields, with `used_bytes` by segment index; of one that isn't there any more it stays as it was."""
        for index, at in self._used_at:
            if (used := used_bytes.get(index)) is not None:
                _U64.pack_into(self._fields, at, used)
        return bytes(self._fields)
