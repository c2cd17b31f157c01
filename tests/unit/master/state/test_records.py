"""Formats of stored records: what is damaged, what a later release has written, and what it has merely added."""

from __future__ import annotations

import json
import struct

import pytest

from kvstore.common.errors import CorruptRecordError, NewerFormatError
from kvstore.master.state.endpoint import Endpoint
from kvstore.master.state.layout import ClusterRecord, NamespaceRecord, SegmentRecord
from kvstore.master.state.records import ENVELOPE_BYTES, RECORD_VERSION, Record, RecordKind

RECORD = Record(RecordKind.JOURNAL, 3, 4, b"body").encode()
SEGMENT_ID = b"s" * 16
REGISTRY = {
    "cluster": (ClusterRecord(b"c" * 16, 7), ClusterRecord.decode),
    "namespace": (NamespaceRecord(b'{"model":"m"}', "m", 3), NamespaceRecord.decode),
    "segment": (
        SegmentRecord(5, Endpoint(SEGMENT_ID, b"p" * 16, "host", 7450, "", 1 << 30)),
        lambda data: SegmentRecord.decode(SEGMENT_ID, data),
    ),
}


def with_version(version: int) -> bytes:
    return RECORD[:4] + struct.pack("<H", version) + RECORD[6:]


def with_fields(record: bytes, **changes: object) -> bytes:
    fields = {**json.loads(record[ENVELOPE_BYTES:]), **changes}
    body = json.dumps({name: value for name, value in fields.items() if value is not None}).encode()
    return Record(RecordKind.REGISTRY, 0, 0, body).encode()


@pytest.mark.parametrize("bit", range(16))
def test_a_flipped_bit_of_the_version_is_damage_and_no_later_format(bit: int) -> None:
    with pytest.raises(CorruptRecordError):
        Record.decode(with_version(RECORD_VERSION ^ 1 << bit), RecordKind.JOURNAL)


@pytest.mark.parametrize("version", [2, 4, 7, 0x1000])
def test_a_record_of_a_later_format_is_told_from_a_damaged_one(version: int) -> None:
    with pytest.raises(NewerFormatError, match=f"has format {version}, and this release reads format 1"):
        Record.decode(with_version(version), RecordKind.JOURNAL)


def test_of_a_later_format_nothing_but_magic_and_version_is_looked_at() -> None:
    with pytest.raises(NewerFormatError):
        Record.decode(with_version(2)[:8] + b"\xff" * 30, RecordKind.SNAPSHOT)


@pytest.mark.parametrize("kind", REGISTRY)
def test_registry_records_say_their_format_and_those_without_have_the_first(kind: str) -> None:
    record, decode = REGISTRY[kind]
    stored = record.encode()
    assert json.loads(stored[ENVELOPE_BYTES:])["format"] == 1
    assert decode(stored) == record
    assert decode(with_fields(stored, format=None)) == record


@pytest.mark.parametrize("kind", REGISTRY)
def test_a_registry_record_of_a_later_format_is_refused(kind: str) -> None:
    record, decode = REGISTRY[kind]
    with pytest.raises(NewerFormatError):
        decode(with_fields(record.encode(), format=2))


@pytest.mark.parametrize("written", [0, -1, "2", 1.5])
def test_a_format_that_is_none_is_damage(written: object) -> None:
    record, decode = REGISTRY["cluster"]
    with pytest.raises(CorruptRecordError):
        decode(with_fields(record.encode(), format=written))


@pytest.mark.parametrize("kind", REGISTRY)
def test_fields_that_a_later_release_has_added_are_no_later_format(kind: str) -> None:
    record, decode = REGISTRY[kind]
    assert decode(with_fields(record.encode(), added="x")) == record


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("cluster", {"epoch_floor": -1}),
        ("cluster", {"epoch_floor": 1 << 32}),
        ("cluster", {"epoch_floor": True}),
        ("cluster", {"cluster_id": "zz" * 16}),
        ("namespace", {"identity": "\ud800"}),
        ("namespace", {"name": "n" * 256}),
        ("namespace", {"epoch": 1.5}),
        ("segment", {"index": 1 << 20}),
        ("segment", {"tcp_port": 65_536}),
        ("segment", {"host": "\udfff"}),
        ("segment", {"unix_path": "u" * 65_536}),
        ("segment", {"capacity_bytes": 1 << 64}),
        ("segment", {"generation": 1 << 32}),
        ("segment", {"snapshot_seq": -1}),
        ("segment", {"snapshot_chunks": 1 << 32}),
        ("segment", {"draining": 1}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
def test_a_field_of_a_registry_record_that_nothing_could_use_is_damage(
    kind: str, changes: dict[str, object]
) -> None:
    record, decode = REGISTRY[kind]
    with pytest.raises(CorruptRecordError, match=next(iter(changes)) if kind != "cluster" else None):
        decode(with_fields(record.encode(), **changes))


@pytest.mark.parametrize("kind", REGISTRY)
def test_a_registry_record_that_is_nested_too_deeply_is_damage(kind: str) -> None:
    with pytest.raises(CorruptRecordError, match="not JSON"):
        REGISTRY[kind][1](Record(RecordKind.REGISTRY, 0, 0, b"[" * 100_000).encode())
