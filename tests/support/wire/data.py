"""Messages of the data port (docs/protocol.md section 6), which the product packs and unpacks in C++ alone, in plain
Python.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kvstore_client.protocol import (
    ENTRIES_MAX,
    KEYS_MAX,
    NAMESPACE_BYTES,
    OBJECT_BYTES_MAX,
    PEER_ID_BYTES,
    SHARDS_MAX,
    Reader,
    Status,
    WireError,
    checked_bytes,
    checked_count,
    u32s,
)

SHARD_BYTES = 12
PULL_PIECES_MAX = 2 << 20
TEXT_BYTES_MAX = 256
HASH_BYTES = 32
WHOLE_SHARD = struct.pack("<6H", 0, 0, 0, 1, 0, 1)
STRING_POOL = 0xFFFF

PUT_HAS_DEPTHS = 1
PUT_HAS_TEXTS = 2
PUT_HAS_INTENT = 8
INTENTS_END = 3

_KEY_BLOCK = struct.Struct("<8sHHI")
_TWO_U32 = struct.Struct("<II")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_COMMIT = struct.Struct("<QII")
_PUT_HEAD = struct.Struct("<BBHI")
_WISH = struct.Struct("<B3xI")
_REMOVE = struct.Struct("<B3xI")
_LOCATION = struct.Struct("<QQIIIBBH")
_GET_ENTRY = struct.Struct("<BBHIII")
_ATTACH_REPLY = struct.Struct("<QQII16s")
_REGISTER = struct.Struct("<QII")


@dataclass(frozen=True)
class KeyBlock:
    """Entries are key-major: entry k * len(shards) + s."""

    ns: bytes
    pool: int
    shards: tuple[bytes, ...]
    hashes: tuple[bytes, ...]

    @property
    def entry_count(self) -> int:
        return len(self.shards) * len(self.hashes)

    def encode(self) -> bytes:
        _check_block(len(self.shards), len(self.hashes))
        head = _KEY_BLOCK.pack(
            checked_bytes(self.ns, NAMESPACE_BYTES, "namespace id"),
            self.pool,
            len(self.shards),
            len(self.hashes),
        )
        shards = b"".join(checked_bytes(s, SHARD_BYTES, "a shard") for s in self.shards)
        return head + shards + b"".join(checked_bytes(h, HASH_BYTES, "a page hash") for h in self.hashes)

    @staticmethod
    def take(reader: Reader) -> KeyBlock:
        ns, pool, shard_count, key_count = _KEY_BLOCK.unpack(reader.take(_KEY_BLOCK.size, "key block"))
        _check_block(shard_count, key_count)
        shards = tuple(reader.take(SHARD_BYTES, "shards") for _ in range(shard_count))
        hashes = tuple(reader.take(HASH_BYTES, "hashes") for _ in range(key_count))
        return KeyBlock(ns, pool, shards, hashes)


def _check_block(shard_count: int, key_count: int) -> None:
    if shard_count == 0 or key_count == 0:
        raise WireError(Status.BAD_REQUEST, "a key block needs at least one key and one shard")
    checked_count(shard_count, SHARDS_MAX, "shards")
    checked_count(key_count, KEYS_MAX, "keys")
    checked_count(shard_count * key_count, ENTRIES_MAX, "entries")


@dataclass(frozen=True)
class StatusesReply:
    """One status byte an entry: of PIN, REMOVE and SUSPECT; of PUT and PULL where there is no COMMIT."""

    statuses: bytes

    def encode(self) -> bytes:
        return _TWO_U32.pack(len(self.statuses), 0) + self.statuses

    @staticmethod
    def decode(fields: bytes) -> StatusesReply:
        reader = Reader(fields)
        count, _ = reader.unpack(_TWO_U32, "count")
        return StatusesReply(reader.take(count, "statuses"))


@dataclass(frozen=True)
class PutReply:
    """Of PUT and PULL: after `journal_seq` of the segment's journal everything in the request is durable."""

    statuses: bytes
    journal_seq: int

    def encode(self) -> bytes:
        return StatusesReply(self.statuses).encode() + _U64.pack(self.journal_seq)

    @staticmethod
    def decode(fields: bytes) -> PutReply:
        reader = Reader(fields)
        count, _ = reader.unpack(_TWO_U32, "count")
        statuses = reader.take(count, "statuses")
        return PutReply(statuses, *reader.unpack(_U64, "journal_seq"))


@dataclass(frozen=True)
class KeptPutReply:
    """The same of a request with an intent: so many of its objects are here and are not retained, for lack of budget."""

    statuses: bytes
    journal_seq: int
    not_kept: int

    def encode(self) -> bytes:
        return PutReply(self.statuses, self.journal_seq).encode() + _TWO_U32.pack(self.not_kept, 0)

    @staticmethod
    def decode(fields: bytes) -> KeptPutReply:
        put = PutReply.decode(fields)
        reader = Reader(fields[len(put.encode()) :])
        return KeptPutReply(put.statuses, put.journal_seq, reader.unpack(_TWO_U32, "not_kept")[0])


@dataclass(frozen=True)
class CommitRequest:
    journal_seq: int
    commit_timeout_ms: int = 1000

    def encode(self) -> bytes:
        return _COMMIT.pack(self.journal_seq, self.commit_timeout_ms, 0)

    @staticmethod
    def decode(body: bytes) -> CommitRequest:
        journal_seq, commit_timeout_ms, _ = Reader(body).unpack(_COMMIT, "COMMIT")
        return CommitRequest(journal_seq, commit_timeout_ms)


@dataclass(frozen=True)
class PinRequest:
    pin_ms: int
    keys: KeyBlock

    def encode(self) -> bytes:
        return _TWO_U32.pack(self.pin_ms, 0) + self.keys.encode()

    @staticmethod
    def decode(body: bytes) -> PinRequest:
        reader = Reader(body)
        pin_ms, _ = reader.unpack(_TWO_U32, "pin_ms")
        return PinRequest(pin_ms, KeyBlock.take(reader))


@dataclass(frozen=True)
class LocateRequest:
    hold_ms: int
    keys: KeyBlock

    def encode(self) -> bytes:
        return _TWO_U32.pack(self.hold_ms, 0) + self.keys.encode()

    @staticmethod
    def decode(body: bytes) -> LocateRequest:
        reader = Reader(body)
        hold_ms, _ = reader.unpack(_TWO_U32, "hold_ms")
        return LocateRequest(hold_ms, KeyBlock.take(reader))


@dataclass(frozen=True)
class Location:
    offset: int
    generation: int
    length: int
    digest: int
    slot: int
    status: int
    digest_alg: int


@dataclass(frozen=True)
class LocateReply:
    locations: tuple[Location, ...]

    def encode(self) -> bytes:
        parts = [
            _LOCATION.pack(x.offset, x.generation, x.length, x.digest, x.slot, x.status, x.digest_alg, 0)
            for x in self.locations
        ]
        return _TWO_U32.pack(len(parts), 0) + b"".join(parts)

    @staticmethod
    def decode(fields: bytes) -> LocateReply:
        reader = Reader(fields)
        count, _ = reader.unpack(_TWO_U32, "count")
        checked_count(count, ENTRIES_MAX, "locations")
        return LocateReply(tuple(Location(*reader.unpack(_LOCATION, "location")[:7]) for _ in range(count)))


@dataclass(frozen=True)
class GetRequest:
    keys: KeyBlock
    expected_lengths: tuple[int, ...]

    def encode(self) -> bytes:
        _one_an_entry(self.keys, self.expected_lengths, "expected_length")
        return _TWO_U32.pack(0, 0) + self.keys.encode() + u32s(self.expected_lengths)

    @staticmethod
    def decode(body: bytes) -> GetRequest:
        reader = Reader(body)
        reader.unpack(_TWO_U32, "reserved")
        keys = KeyBlock.take(reader)
        return GetRequest(keys, reader.u32s(keys.entry_count, "expected_length"))


@dataclass(frozen=True)
class GetEntry:
    status: int
    digest_alg: int
    length: int
    digest: int


@dataclass(frozen=True)
class GetReply:
    """The payload is the bytes of the OK entries, in order."""

    entries: tuple[GetEntry, ...]

    def encode(self) -> bytes:
        parts = [_GET_ENTRY.pack(e.status, e.digest_alg, 0, e.length, e.digest, 0) for e in self.entries]
        return _TWO_U32.pack(len(parts), 0) + b"".join(parts)

    @staticmethod
    def decode(fields: bytes) -> GetReply:
        reader = Reader(fields)
        count, _ = reader.unpack(_TWO_U32, "count")
        checked_count(count, ENTRIES_MAX, "entries")
        entries = []
        for _ in range(count):
            status, digest_alg, _, length, digest, _ = reader.unpack(_GET_ENTRY, "entry")
            entries.append(GetEntry(status, digest_alg, length, digest))
        return GetReply(tuple(entries))


@dataclass(frozen=True)
class PutRequest:
    """The payload is the bytes of all entries in order, then one u32 digest each."""

    keys: KeyBlock
    lengths: tuple[int, ...]
    ack_committed: bool = True
    commit_timeout_ms: int = 1000
    depths: tuple[int, ...] | None = None
    texts: tuple[str, ...] | None = None
    intent: int | None = None
    ttl_ms: int = 0

    def encode(self) -> bytes:
        return _encode_put(self)

    @staticmethod
    def decode(body: bytes) -> PutRequest:
        return _take_put(Reader(body))


@dataclass(frozen=True)
class PullRequest:
    """A put whose bytes the segment copies from a registered buffer: piece p of entry i is at [i * pieces +
    p]."""

    put: PutRequest
    buffer_id: int
    pieces: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def encode(self) -> bytes:
        count = checked_count(self.put.keys.entry_count * self.pieces, PULL_PIECES_MAX, "pull pieces")
        if len(self.offsets) != count or len(self.sizes) != count:
            raise WireError(Status.BAD_REQUEST, f"PULL needs {count} offsets and sizes")
        offsets = struct.pack(f"<{count}Q", *self.offsets)
        return _encode_put(self.put) + _TWO_U32.pack(self.buffer_id, self.pieces) + offsets + u32s(self.sizes)

    @staticmethod
    def take(reader: Reader) -> PullRequest:
        put = _take_put(reader)
        buffer_id, pieces = reader.unpack(_TWO_U32, "buffer_id and pieces")
        count = checked_count(put.keys.entry_count * pieces, PULL_PIECES_MAX, "pull pieces")
        offsets = struct.unpack(f"<{count}Q", reader.take(8 * count, "offsets"))
        return PullRequest(put, buffer_id, pieces, offsets, reader.u32s(count, "sizes"))

    @staticmethod
    def decode(body: bytes) -> PullRequest:
        return PullRequest.take(Reader(body))


@dataclass(frozen=True)
class RdmaPullRequest:
    """PULL out of a buffer of RDMA_REGISTER: it says what digest the bytes of each entry have."""

    pull: PullRequest
    digests: tuple[int, ...]

    def encode(self) -> bytes:
        _one_an_entry(self.pull.put.keys, self.digests, "digest")
        return self.pull.encode() + u32s(self.digests)

    @staticmethod
    def decode(body: bytes) -> RdmaPullRequest:
        reader = Reader(body)
        pull = PullRequest.take(reader)
        return RdmaPullRequest(pull, reader.u32s(pull.put.keys.entry_count, "digests"))


def _one_an_entry(keys: KeyBlock, values: tuple[int, ...], field: str) -> None:
    if len(values) != keys.entry_count:
        raise WireError(Status.BAD_REQUEST, f"{keys.entry_count} entries need as many values of {field}")


def _encode_put(put: PutRequest) -> bytes:
    _one_an_entry(put.keys, put.lengths, "length")
    flags = (PUT_HAS_DEPTHS if put.depths is not None else 0) | (
        PUT_HAS_TEXTS if put.texts is not None else 0
    )
    if put.intent is not None:
        flags |= PUT_HAS_INTENT
    parts = [_PUT_HEAD.pack(put.ack_committed, flags, 0, put.commit_timeout_ms), put.keys.encode()]
    parts.append(u32s(put.lengths))
    for values in (put.depths, put.texts):
        if values is not None and len(values) != len(put.keys.hashes):
            raise WireError(Status.BAD_REQUEST, "depths and texts come one a key")
    if put.depths is not None:
        parts.append(u32s(put.depths))
    if put.texts is not None:
        texts = [text.encode() for text in put.texts]
        for text in texts:
            checked_count(len(text), TEXT_BYTES_MAX, "bytes of key text")
        parts.append(struct.pack(f"<{len(texts)}H", *map(len, texts)))
        parts.extend(texts)
    if put.intent is not None:
        parts.append(_WISH.pack(_checked_intent(put.intent), put.ttl_ms))
    return b"".join(parts)


def _checked_intent(intent: int) -> int:
    if intent >= INTENTS_END:
        raise WireError(Status.BAD_REQUEST, f"no intent is {intent}")
    return intent


def _take_put(reader: Reader) -> PutRequest:
    ack, flags, _, commit_timeout_ms = reader.unpack(_PUT_HEAD, "put head")
    if ack > 1 or flags & ~(PUT_HAS_DEPTHS | PUT_HAS_TEXTS | PUT_HAS_INTENT):
        raise WireError(Status.BAD_REQUEST, f"put head has ack {ack}, flags {flags}")
    keys = KeyBlock.take(reader)
    lengths = reader.u32s(keys.entry_count, "lengths")
    if max(lengths) > OBJECT_BYTES_MAX:
        raise WireError(Status.TOO_LARGE, f"an object is over the cap of {OBJECT_BYTES_MAX} bytes")
    count = len(keys.hashes)
    depths = reader.u32s(count, "depths") if flags & PUT_HAS_DEPTHS else None
    texts = None
    if flags & PUT_HAS_TEXTS:
        sizes = struct.unpack(f"<{count}H", reader.take(2 * count, "text_bytes"))
        for size in sizes:
            checked_count(size, TEXT_BYTES_MAX, "bytes of key text")
        texts = tuple(reader.text(size, "text") for size in sizes)
    intent, ttl_ms = reader.unpack(_WISH, "intent") if flags & PUT_HAS_INTENT else (None, 0)
    if intent is not None:
        _checked_intent(intent)
    return PutRequest(keys, lengths, bool(ack), commit_timeout_ms, depths, texts, intent, ttl_ms)


@dataclass(frozen=True)
class UnpinRequest:
    """Has no reply."""

    locate_id: int

    def encode(self) -> bytes:
        return _U32.pack(self.locate_id)

    @staticmethod
    def decode(body: bytes) -> UnpinRequest:
        return UnpinRequest(*Reader(body).unpack(_U32, "locate_id"))


@dataclass(frozen=True)
class RemoveRequest:
    keys: KeyBlock
    ack_committed: bool = True
    commit_timeout_ms: int = 1000

    def encode(self) -> bytes:
        return _REMOVE.pack(self.ack_committed, self.commit_timeout_ms) + self.keys.encode()

    @staticmethod
    def decode(body: bytes) -> RemoveRequest:
        reader = Reader(body)
        ack, commit_timeout_ms = reader.unpack(_REMOVE, "REMOVE")
        return RemoveRequest(KeyBlock.take(reader), bool(ack), commit_timeout_ms)


@dataclass(frozen=True)
class KeepRequest:
    """What is to become of objects when space runs short."""

    intent: int
    ttl_ms: int
    keys: KeyBlock

    def encode(self) -> bytes:
        return _WISH.pack(_checked_intent(self.intent), self.ttl_ms) + self.keys.encode()

    @staticmethod
    def decode(body: bytes) -> KeepRequest:
        reader = Reader(body)
        intent, ttl_ms = reader.unpack(_WISH, "KEEP")
        return KeepRequest(_checked_intent(intent), ttl_ms, KeyBlock.take(reader))


@dataclass(frozen=True)
class SuspectRequest:
    keys: KeyBlock

    def encode(self) -> bytes:
        return self.keys.encode()

    @staticmethod
    def decode(body: bytes) -> SuspectRequest:
        return SuspectRequest(KeyBlock.take(Reader(body)))


@dataclass(frozen=True)
class AttachReply:
    """The pool's descriptor, read-only, rides on the reply."""

    map_bytes: int
    table_offset: int
    slot_count: int
    slot_bytes: int
    pool_id: bytes

    def encode(self) -> bytes:
        return _ATTACH_REPLY.pack(
            self.map_bytes,
            self.table_offset,
            self.slot_count,
            self.slot_bytes,
            checked_bytes(self.pool_id, PEER_ID_BYTES, "pool_id"),
        )

    @staticmethod
    def decode(fields: bytes) -> AttachReply:
        taken = Reader(fields).take(_ATTACH_REPLY.size, "ATTACH reply")
        return AttachReply(*_ATTACH_REPLY.unpack(taken))


@dataclass(frozen=True)
class RegisterRequest:
    """A descriptor rides on the request."""

    size_bytes: int
    flags: int = 0

    def encode(self) -> bytes:
        return _REGISTER.pack(self.size_bytes, self.flags, 0)

    @staticmethod
    def decode(body: bytes) -> RegisterRequest:
        size_bytes, flags, _ = Reader(body).unpack(_REGISTER, "REGISTER")
        return RegisterRequest(size_bytes, flags)


@dataclass(frozen=True)
class RegisterReply:
    buffer_id: int
    mode: int  # 1 mapped, 2 pread

    def encode(self) -> bytes:
        return _TWO_U32.pack(self.buffer_id, self.mode)

    @staticmethod
    def decode(fields: bytes) -> RegisterReply:
        return RegisterReply(*Reader(fields).unpack(_TWO_U32, "REGISTER reply"))


@dataclass(frozen=True)
class UnregisterRequest:
    buffer_id: int

    def encode(self) -> bytes:
        return _U32.pack(self.buffer_id)

    @staticmethod
    def decode(body: bytes) -> UnregisterRequest:
        return UnregisterRequest(*Reader(body).unpack(_U32, "buffer_id"))
