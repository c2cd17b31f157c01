"""Messages of the directory port that the product packs and unpacks in C++ alone, in plain Python."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kvstore_client.protocol import (
    ENTRIES_MAX,
    FINGERPRINT_BYTES,
    NO_SEGMENT,
    OBJECT_BYTES_MAX,
    REPLICAS_MAX,
    Reader,
    Status,
    WireError,
    checked_count,
    u32s,
)

_EXISTS = struct.Struct("<8sII")
_LOOKUP = struct.Struct("<8sIB3x")
_PLACE = struct.Struct("<8sII")
_TWO_U32 = struct.Struct("<II")


def _fingerprint_count(fingerprints: bytes) -> int:
    if len(fingerprints) % FINGERPRINT_BYTES:
        raise WireError(Status.BAD_REQUEST, "fingerprints come in 16 bytes each")
    return checked_count(len(fingerprints) // FINGERPRINT_BYTES, ENTRIES_MAX, "entries")


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


@dataclass(frozen=True)
class PlaceCopiesRequest:
    """A PLACE that names the segments which its client avoids, and asks for several copies."""

    first: PlaceRequest
    avoided: tuple[int, ...]
    replicas: int

    def encode(self) -> bytes:
        return self.first.encode() + u32s((len(self.avoided), *self.avoided, self.replicas))

    @staticmethod
    def decode(body: bytes) -> PlaceCopiesRequest:
        first = PlaceRequest.decode(body)
        reader = Reader(body[len(first.encode()) :])
        (avoided_count,) = reader.u32s(1, "avoided_count")
        avoided = reader.u32s(avoided_count, "avoided")
        return PlaceCopiesRequest(first, avoided, reader.u32s(1, "replicas")[0])


@dataclass(frozen=True)
class PlaceCopiesReply:
    """copies[r * count + i]: where copy r + 1 of entry i goes, or NO_SEGMENT."""

    first: PlaceReply
    copies: tuple[int, ...]

    def encode(self) -> bytes:
        replicas = 1 + len(self.copies) // len(self.first.segments)
        return self.first.encode() + _TWO_U32.pack(replicas, 0) + u32s(self.copies)

    @staticmethod
    def decode(fields: bytes) -> PlaceCopiesReply:
        first = PlaceReply.decode(fields)
        reader = Reader(fields[len(first.encode()) :])
        replicas, _ = reader.unpack(_TWO_U32, "replicas")
        return PlaceCopiesReply(first, reader.u32s(len(first.segments) * (replicas - 1), "copies"))
