"""The envelope around every stored record (docs/protocol.md section 8): magic, kind, sequence range, length,
checksum."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from kvstore.common.errors import CorruptRecordError, NewerFormatError
from kvstore_client._native import crc32c
from kvstore_client.protocol.journal import count_entries

RECORD_MAGIC = 0x314A564B  # "KVJ1"
# Of the envelope and of what is in it. The next ones are 2, 4, 7: two bits at least between any two, so that a flipped bit
# makes a corrupt record and not one of a later release (docs/upgrading.md).
RECORD_VERSION = 1
_ENVELOPE = struct.Struct("<IHHQQII")
ENVELOPE_BYTES = _ENVELOPE.size


class RecordKind(IntEnum):
    JOURNAL = 1  # body: every entry of the range, in order
    SNAPSHOT = 2  # body: ADDs of what was alive of the range
    REGISTRY = 3  # body is JSON


@dataclass(frozen=True, slots=True)
class Record:
    kind: RecordKind
    first_seq: int
    last_seq: int
    body: bytes

    def encode(self) -> bytes:
        head = _ENVELOPE.pack(
            RECORD_MAGIC,
            RECORD_VERSION,
            self.kind,
            self.first_seq,
            self.last_seq,
            len(self.body),
            crc32c(self.body),
        )
        return head + self.body

    @staticmethod
    def decode(data: bytes, *kinds: RecordKind) -> Record:
        """Raises CorruptRecordError unless it is an intact record of one of these kinds, NewerFormatError for one of a
        later release, of which magic and version are all that is known."""
        if len(data) < ENVELOPE_BYTES:
            raise CorruptRecordError(f"record of {len(data)} bytes is shorter than its envelope")
        magic, version, stored_kind, first_seq, last_seq, body_bytes, crc = _ENVELOPE.unpack_from(data)
        body = data[ENVELOPE_BYTES:]
        if magic != RECORD_MAGIC:
            raise CorruptRecordError("record has no magic")
        if version > RECORD_VERSION and (version ^ RECORD_VERSION).bit_count() > 1:
            raise NewerFormatError(
                f"a {kinds[0].name.lower()} record in the metadata store", version, RECORD_VERSION
            )
        if version != RECORD_VERSION:
            raise CorruptRecordError(f"record version {version} is not {RECORD_VERSION}")
        if stored_kind not in kinds:
            wanted = " or ".join(kind.name for kind in kinds)
            raise CorruptRecordError(f"record of kind {stored_kind} where {wanted} belongs")
        if body_bytes != len(body):
            raise CorruptRecordError(f"record says {body_bytes} bytes of body, has {len(body)}")
        if crc32c(body) != crc:
            raise CorruptRecordError("record's checksum is wrong")
        if first_seq > last_seq:
            raise CorruptRecordError(f"record counts from {first_seq} to {last_seq}")
        return Record(RecordKind(stored_kind), first_seq, last_seq, body)


def decode_journal(data: bytes, first_seq: int) -> Record:
    """The record that lies at journal entry `first_seq`: as the segment sent it, or what a compaction has left of it and of those
    after it. Raises CorruptRecordError, WireError."""
    record = Record.decode(data, RecordKind.JOURNAL, RecordKind.SNAPSHOT)
    entries = count_entries(record.body)
    numbered = record.kind is RecordKind.JOURNAL
    if record.first_seq != first_seq or (numbered and record.last_seq - record.first_seq + 1 != entries):
        raise CorruptRecordError(
            f"record counts {record.first_seq} to {record.last_seq}, has {entries} entries, lies at {first_seq}"
        )
    return record
