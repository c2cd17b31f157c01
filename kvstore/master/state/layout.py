"""Where durable state lies in the metadata store, and what its registry records say.

    m/cluster                                       cluster id, epoch floor of namespaces
    m/commits-lost                                  the embedded store has lost commits, and nothing was made of it yet
    n/<sha256 of identity>                          a namespace
    s/<segment id>                                  a segment: endpoint, pool, which snapshot is current
    q/<'n' or 't'><sha256 of identity or tag>       a quota
    l/<segment id> 's' <generation u32> <chunk u32> snapshot chunks of the segment's log
    l/<segment id> 't' <first_seq u64>              journal records after the snapshot

Numbers in keys are big-endian, so that key order is log order. One DeleteRange removes a segment's whole log.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from kvstore.common.errors import CorruptRecordError, NewerFormatError
from kvstore.master.metadata.store import DeleteRange, prefix_end
from kvstore.master.state.endpoint import Endpoint
from kvstore.master.state.records import Record, RecordKind
from kvstore_client.protocol import IDENTITY_BYTES_MAX, NAME_BYTES_MAX

CLUSTER_KEY = b"m/cluster"
NAMESPACES_PREFIX = b"n/"
SEGMENTS_PREFIX = b"s/"
QUOTAS_PREFIX = b"q/"
LOGS_PREFIX = b"l/"
ID_BYTES = 16
QUOTA_BYTES_MAX = 1 << 60
# Of the fields of registry records; that of the cluster's record is the format of the whole store, keys and all
# (docs/upgrading.md). Records without one have the first.
REGISTRY_FORMAT = 1
SEGMENT_INDEX_MAX = 1 << 20  # the native index's bound
SEQ_MAX = 1 << 62  # beyond what a segment can count to; keys hold 64 bits
# Of a segment's snapshots: half of what keys hold, so that there is always a next one.
GENERATION_MAX = 1 << 31

_SNAPSHOT = struct.Struct(">II")
_JOURNAL = struct.Struct(">Q")
# Snapshot chunks sort before journal records.
_SNAPSHOT_TAG, _JOURNAL_TAG = b"s", b"t"


def segment_key(segment_id: bytes) -> bytes:
    return SEGMENTS_PREFIX + segment_id


def namespace_key(identity_digest: bytes) -> bytes:
    return NAMESPACES_PREFIX + identity_digest


class QuotaKind(str, Enum):
    """What a quota is of."""

    NAMESPACE = "namespace"
    TAG = "tag"


def quota_key(kind: QuotaKind, subject: bytes) -> bytes:
    return QUOTAS_PREFIX + kind.value[:1].encode() + hashlib.sha256(subject).digest()


def log_prefix(segment_id: bytes) -> bytes:
    return LOGS_PREFIX + segment_id


def journal_key(segment_id: bytes, first_seq: int) -> bytes:
    return log_prefix(segment_id) + _JOURNAL_TAG + _JOURNAL.pack(first_seq)


def snapshot_key(segment_id: bytes, generation: int, chunk: int) -> bytes:
    return log_prefix(segment_id) + _SNAPSHOT_TAG + _SNAPSHOT.pack(generation, chunk)


def whole_log(segment_id: bytes) -> DeleteRange:
    return DeleteRange(log_prefix(segment_id), prefix_end(log_prefix(segment_id)))


def journal_before(segment_id: bytes, seq: int | None) -> DeleteRange:
    """Journal records that start before `seq`; None: all."""
    start = journal_key(segment_id, 0)
    if seq is None:
        return DeleteRange(start, prefix_end(log_prefix(segment_id) + _JOURNAL_TAG))
    return DeleteRange(start, journal_key(segment_id, seq))


def snapshots_before(segment_id: bytes, generation: int) -> DeleteRange:
    return DeleteRange(snapshot_key(segment_id, 0, 0), snapshot_key(segment_id, generation, 0))


def snapshots_between(segment_id: bytes, after: int, before: int) -> DeleteRange:
    """Of the generations between the two, which are not among them."""
    return DeleteRange(snapshot_key(segment_id, after + 1, 0), snapshot_key(segment_id, before, 0))


@dataclass(frozen=True, slots=True)
class LogKey:
    """A parsed key of a log: of a snapshot chunk (generation, chunk) or of a journal record (first_seq)."""

    segment_id: bytes
    generation: int = 0
    chunk: int = 0
    first_seq: int | None = None


def parse_log_key(key: bytes) -> LogKey:
    """Raises CorruptRecordError."""
    segment_id, tag, rest = key[2 : 2 + ID_BYTES], key[2 + ID_BYTES : 3 + ID_BYTES], key[3 + ID_BYTES :]
    if tag == _SNAPSHOT_TAG and len(rest) == _SNAPSHOT.size:
        return LogKey(segment_id, *_SNAPSHOT.unpack(rest))
    if tag == _JOURNAL_TAG and len(rest) == _JOURNAL.size:
        return LogKey(segment_id, first_seq=_JOURNAL.unpack(rest)[0])
    raise CorruptRecordError(f"log key {key.hex()} has no known form")


# ---- registry records --------------------------------------------------------------------------------------


def _encode(fields: dict[str, str | int | bool]) -> bytes:
    body = json.dumps(
        {"format": REGISTRY_FORMAT, **fields}, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    ).encode()
    return Record(RecordKind.REGISTRY, 0, 0, body).encode()


# Whether a value that was read can be that of a field. Whatever else uses it (keys, MAP, the index) takes what passes here.
_Check = Callable[[object], bool]


def _number(low: int, high: int) -> _Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _text(bytes_max: int) -> _Check:
    def check(value: object) -> bool:
        try:
            return isinstance(value, str) and len(value.encode()) <= bytes_max
        except UnicodeEncodeError:  # JSON can spell half a character
            return False

    return check


def _flag(value: object) -> bool:
    return isinstance(value, bool)


_ID = _text(2 * ID_BYTES)
_U32 = _number(0, (1 << 32) - 1)


def _decode(data: bytes, what: str, checks: Mapping[str, _Check]) -> dict[str, str | int | bool]:
    body = Record.decode(data, RecordKind.REGISTRY).body
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptRecordError(f"registry record is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise CorruptRecordError("registry record is not an object")
    written = fields.get("format", 1)
    if not isinstance(written, int) or written < 1:
        raise CorruptRecordError(f"registry record has the format {written!r}")
    if written > REGISTRY_FORMAT:
        raise NewerFormatError(f"{what} in the metadata store", written, REGISTRY_FORMAT)
    for name, check in checks.items():
        if name not in fields:
            raise CorruptRecordError(f"registry record lacks {name}")
        if not check(fields[name]):
            raise CorruptRecordError(
                f"registry record says that {name} is {ascii(fields[name])[:100]}, which can't be"
            )
    return {name: fields[name] for name in checks}  # fields that a later release has added are ignored


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    cluster_id: bytes
    # Epoch of namespaces opened for the first time. Raised when a namespace's record was lost, so that its
    # old epochs never come back.
    epoch_floor: int = 0

    def encode(self) -> bytes:
        return _encode({"cluster_id": self.cluster_id.hex(), "epoch_floor": self.epoch_floor})

    @staticmethod
    def decode(data: bytes) -> ClusterRecord:
        fields = _decode(data, "the cluster's record", {"cluster_id": _ID, "epoch_floor": _U32})
        return ClusterRecord(_hex(fields["cluster_id"], ID_BYTES), int(fields["epoch_floor"]))


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    identity: bytes
    name: str
    epoch: int

    def encode(self) -> bytes:
        return _encode({"identity": self.identity.decode(), "name": self.name, "epoch": self.epoch})

    @staticmethod
    def decode(data: bytes) -> NamespaceRecord:
        checks = {"identity": _text(IDENTITY_BYTES_MAX), "name": _text(NAME_BYTES_MAX), "epoch": _U32}
        fields = _decode(data, "a namespace's record", checks)
        return NamespaceRecord(str(fields["identity"]).encode(), str(fields["name"]), int(fields["epoch"]))


@dataclass(frozen=True, slots=True)
class QuotaRecord:
    """`subject`: the identity of a namespace, or a tag, in UTF-8."""

    kind: QuotaKind
    subject: bytes
    limit_bytes: int

    def encode(self) -> bytes:
        return _encode(
            {"kind": self.kind.value, "subject": self.subject.decode(), "limit_bytes": self.limit_bytes}
        )

    @staticmethod
    def decode(data: bytes) -> QuotaRecord:
        checks = {
            "kind": lambda value: value in list(QuotaKind),
            "subject": _text(IDENTITY_BYTES_MAX),
            "limit_bytes": _number(0, QUOTA_BYTES_MAX),
        }
        fields = _decode(data, "a quota's record", checks)
        return QuotaRecord(
            QuotaKind(str(fields["kind"])), str(fields["subject"]).encode(), int(fields["limit_bytes"])
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Chunks [0, chunks) of the generation hold everything up to entry `seq`. Generation 0: there is none."""

    generation: int = 0
    seq: int = 0
    chunks: int = 0


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A segment in the registry, under its id."""

    # Its number in MAP, LOOKUP and PLACE: the same at every master, before and after a fail-over.
    index: int
    endpoint: Endpoint
    draining: bool = False
    snapshot: Snapshot = Snapshot()

    def encode(self) -> bytes:
        return _encode(
            {
                "index": self.index,
                "pool_id": self.endpoint.pool_id.hex(),
                "host": self.endpoint.host,
                "tcp_port": self.endpoint.tcp_port,
                "unix_path": self.endpoint.unix_path,
                "capacity_bytes": self.endpoint.capacity_bytes,
                "draining": self.draining,
                "generation": self.snapshot.generation,
                "snapshot_seq": self.snapshot.seq,
                "snapshot_chunks": self.snapshot.chunks,
            }
        )

    @staticmethod
    def decode(segment_id: bytes, data: bytes) -> SegmentRecord:
        """Raises CorruptRecordError, NewerFormatError."""
        fields = _decode(
            data,
            "a segment's record",
            {
                "index": _number(0, SEGMENT_INDEX_MAX - 1),
                "pool_id": _ID,
                "host": _text((1 << 16) - 1),
                "tcp_port": _number(0, (1 << 16) - 1),
                "unix_path": _text((1 << 16) - 1),
                "capacity_bytes": _number(0, (1 << 64) - 1),
                "draining": _flag,
                "generation": _number(0, GENERATION_MAX),
                "snapshot_seq": _number(0, SEQ_MAX),
                "snapshot_chunks": _U32,
            },
        )
        endpoint = Endpoint(
            segment_id,
            _hex(fields["pool_id"], ID_BYTES),
            str(fields["host"]),
            int(fields["tcp_port"]),
            str(fields["unix_path"]),
            int(fields["capacity_bytes"]),
        )
        snapshot = Snapshot(
            int(fields["generation"]), int(fields["snapshot_seq"]), int(fields["snapshot_chunks"])
        )
        return SegmentRecord(int(fields["index"]), endpoint, bool(fields["draining"]), snapshot)


def _hex(text: str | int | bool, size: int) -> bytes:
    try:
        value = bytes.fromhex(str(text))
    except ValueError:
        value = b""
    if len(value) != size:
        raise CorruptRecordError(f"registry record has {text!r} where an id of {size} bytes belongs")
    return value
