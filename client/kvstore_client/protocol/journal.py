"""Journal groups (docs/protocol.md section 8): what a segment tells the directory, as (op, namespace,
fingerprints, lengths)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from kvstore_client.protocol import (
    ENTRIES_MAX,
    FINGERPRINT_BYTES,
    NAMESPACE_BYTES,
    Reader,
    Status,
    WireError,
    checked_bytes,
    checked_count,
    u32s,
)

_GROUP = struct.Struct("<B3xI8s")


class JournalOp(IntEnum):
    ADD = 1
    REMOVE = 2


@dataclass(frozen=True)
class JournalGroup:
    op: JournalOp
    ns: bytes
    fingerprints: bytes
    lengths: tuple[int, ...]

    def encode(self) -> bytes:
        if len(self.fingerprints) != len(self.lengths) * FINGERPRINT_BYTES:
            raise WireError(Status.BAD_REQUEST, "a group needs one length a fingerprint")
        checked_count(len(self.lengths), ENTRIES_MAX, "entries")
        head = _GROUP.pack(
            self.op, len(self.lengths), checked_bytes(self.ns, NAMESPACE_BYTES, "namespace id")
        )
        return head + self.fingerprints + u32s(self.lengths)


def encode_groups(groups: Iterable[JournalGroup]) -> bytes:
    return b"".join(group.encode() for group in groups)


def decode_groups(data: bytes) -> list[JournalGroup]:
    """Raises WireError unless the data is whole groups, ENTRIES_MAX entries at most."""
    groups = []
    for op, start, count in _spans(data):
        reader = Reader(data[start : start + _group_bytes(count)])
        _, _, ns = _GROUP.unpack(reader.take(_GROUP.size, "group"))
        fingerprints = reader.take(count * FINGERPRINT_BYTES, "fingerprints")
        groups.append(JournalGroup(op, ns, fingerprints, reader.u32s(count, "lengths")))
    return groups


def count_entries(data: bytes) -> int:
    """Entries in encoded groups; checks their form without decoding them. Raises WireError."""
    return sum(count for _, _, count in _spans(data))


def skip_entries(data: bytes, skip: int) -> bytes:
    """The groups without their first `skip` entries. Those of which none is skipped are not looked at."""
    if not skip:
        return data
    for op, start, count in _spans(data):
        if skip < count:
            end = start + _group_bytes(count)
            first, *_ = decode_groups(data[start:end])
            cut = JournalGroup(
                op, first.ns, first.fingerprints[skip * FINGERPRINT_BYTES :], first.lengths[skip:]
            )
            return cut.encode() + data[end:]
        skip -= count
    if skip:
        raise WireError(Status.BAD_REQUEST, f"{skip} more entries to skip than the groups hold")
    return b""


def _group_bytes(count: int) -> int:
    return _GROUP.size + count * (FINGERPRINT_BYTES + 4)


def _spans(data: bytes) -> Iterator[tuple[JournalOp, int, int]]:
    """(op, start, entries) of each group."""
    at = total = 0
    while at < len(data):
        if len(data) - at < _GROUP.size:
            raise WireError(Status.BAD_REQUEST, "a journal group is cut short")
        op, count, _ = _GROUP.unpack_from(data, at)
        if op not in (JournalOp.ADD, JournalOp.REMOVE):
            raise WireError(Status.BAD_REQUEST, f"journal op {op} is neither ADD nor REMOVE")
        total = checked_count(total + count, ENTRIES_MAX, "journal entries")
        if len(data) - at < _group_bytes(count):
            raise WireError(Status.BAD_REQUEST, "a journal group is cut short")
        yield JournalOp(op), at, count
        at += _group_bytes(count)
