"""FETCH of the data port (docs/protocol.md section 6), which the product packs and unpacks in C++ alone, in plain Python."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kvstore_client.protocol import (
    FETCH_ENTRIES_MAX,
    FINGERPRINT_BYTES,
    NAMESPACE_BYTES,
    Reader,
    checked_bytes,
    checked_count,
)

_REQUEST = struct.Struct("<8sQII")
_COUNT = struct.Struct("<II")
_OBJECT = struct.Struct("<BBBBHHIII12s32s")


@dataclass(frozen=True)
class FetchRequest:
    ns: bytes
    bytes_max: int
    fingerprints: tuple[bytes, ...]

    def encode(self) -> bytes:
        count = checked_count(len(self.fingerprints), FETCH_ENTRIES_MAX, "objects")
        ns = checked_bytes(self.ns, NAMESPACE_BYTES, "namespace")
        return _REQUEST.pack(ns, self.bytes_max, count, 0) + b"".join(self.fingerprints)

    @staticmethod
    def decode(body: bytes) -> FetchRequest:
        reader = Reader(body)
        ns, bytes_max, count, _ = reader.unpack(_REQUEST, "FETCH")
        checked_count(count, FETCH_ENTRIES_MAX, "objects")
        fingerprints = tuple(reader.take(FINGERPRINT_BYTES, "fingerprint") for _ in range(count))
        return FetchRequest(ns, bytes_max, fingerprints)


@dataclass(frozen=True)
class FetchedObject:
    status: int
    digest_alg: int = 0
    intent: int = 0
    pool: int = 0
    length: int = 0
    digest: int = 0
    depth: int = 0
    shard: bytes = bytes(12)
    page_hash: bytes = bytes(32)
    text: bytes = b""


@dataclass(frozen=True)
class FetchReply:
    """The payload is the bytes of the OK objects, in order."""

    objects: tuple[FetchedObject, ...]

    def encode(self) -> bytes:
        parts = [_COUNT.pack(len(self.objects), 0)]
        for o in self.objects:
            numbers = (o.status, o.digest_alg, o.intent, 0, len(o.text), o.pool, o.length, o.digest, o.depth)
            parts.append(_OBJECT.pack(*numbers, o.shard, o.page_hash))
        return b"".join(parts + [o.text for o in self.objects])

    @staticmethod
    def decode(fields: bytes) -> FetchReply:
        reader = Reader(fields)
        count, _ = reader.unpack(_COUNT, "count")
        checked_count(count, FETCH_ENTRIES_MAX, "objects")
        said = [reader.unpack(_OBJECT, "object") for _ in range(count)]
        objects = []
        for status, digest_alg, intent, _, text_bytes, *rest in said:
            text = reader.take(text_bytes, "text")
            objects.append(FetchedObject(status, digest_alg, intent, *rest, text))
        return FetchReply(tuple(objects))
