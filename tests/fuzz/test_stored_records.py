"""Records of the metadata store, of any bytes: read, or refused as corrupt or as of a later release; whatever else lies there loads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.common.errors import CorruptRecordError, NewerFormatError, StoreError
from kvstore.master.metadata.rocksdb_messages import (
    OpKind,
    decode_ops,
    decode_pairs,
    encode_op,
    encode_pair,
)
from kvstore.master.state import layout
from kvstore.master.state.endpoint import Endpoint
from kvstore.master.state.layout import ClusterRecord, NamespaceRecord, SegmentRecord, Snapshot
from kvstore.master.state.records import Record, RecordKind, decode_journal
from kvstore.master.state.replay import CorruptRecord, Replay
from kvstore_client.protocol import SegmentState, WireError
from support.fuzzing import NUMBERS, fuzzed, golden_bodies, hostile, says_why

GROUPS = [message[24:] for message in golden_bodies("JournalMessage")]
SEGMENT_ID, POOL_ID, CLUSTER_ID = bytes(range(16)), bytes(range(16, 32)), bytes(range(32, 48))
ENDPOINT = Endpoint(SEGMENT_ID, POOL_ID, "10.0.0.7", 7450, "/run/kv/s0.sock", 1 << 40)
RECORDS: list[tuple[Any, bytes]] = [
    (ClusterRecord.decode, ClusterRecord(CLUSTER_ID, 3).encode()),
    (NamespaceRecord.decode, NamespaceRecord(b'{"model":"m"}', "m-bf16", 4).encode()),
    (
        lambda data: SegmentRecord.decode(SEGMENT_ID, data),
        SegmentRecord(3, ENDPOINT, True, Snapshot(5, 100, 2)).encode(),
    ),
]
JOURNAL = [Record(RecordKind.JOURNAL, 41, 44, groups).encode() for groups in GROUPS]
SNAPSHOT = [Record(RecordKind.SNAPSHOT, 44, 44, groups).encode() for groups in GROUPS]

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from((*NUMBERS, *(-n for n in NUMBERS), 10**30, 1.5)),
    st.text(max_size=20),
    st.sampled_from(("\ud800", "é" * 70_000, CLUSTER_ID.hex(), "zz" * 16)),
    st.lists(st.integers(), max_size=2),
)


@st.composite
def registry_bodies(draw: st.DrawFn, original: bytes) -> bytes:
    """JSON of a registry record with other values in its fields, some of them missing."""
    fields = json.loads(Record.decode(original, RecordKind.REGISTRY).body)
    for name in draw(st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=3)):
        if draw(st.integers(0, 9)) == 0:
            fields.pop(name, None)
        else:
            fields[name] = draw(VALUES)
    return json.dumps(fields).encode()


def registry_values(original: bytes) -> st.SearchStrategy[bytes]:
    bodies = st.one_of(
        registry_bodies(original),
        hostile([original[32:]]),
        st.sampled_from((b"[" * 100_000, b'{"format":' + b"1" * 5000 + b"}", b'{"format":NaN}', b"\xff{}")),
    )
    return st.one_of(
        bodies.map(lambda body: Record(RecordKind.REGISTRY, 0, 0, body).encode()), hostile([original])
    )


@pytest.mark.parametrize(("decode", "original"), RECORDS, ids=("cluster", "namespace", "segment"))
def test_a_registry_record_is_read_or_refused_and_means_the_same_when_written_again(
    decode: Any, original: bytes
) -> None:
    @given(registry_values(original))
    @fuzzed(250)
    def check(data: bytes) -> None:
        try:
            read = decode(data)
        except (CorruptRecordError, NewerFormatError) as error:
            says_why(error)
            return
        assert decode(read.encode()) == read
        if isinstance(read, SegmentRecord):
            # What the master makes of it: a record of its map, and keys of its log.
            read.endpoint.map_record(read.index, SegmentState.LIVE, 0).encode()
            layout.snapshot_key(SEGMENT_ID, read.snapshot.generation, read.snapshot.chunks)
            layout.journal_key(SEGMENT_ID, read.snapshot.seq)

    check()


@given(hostile([*JOURNAL, *SNAPSHOT]), st.sampled_from((0, 1, 41, 44, (1 << 64) - 1)))
@fuzzed(300)
def test_a_log_record_is_read_or_refused(data: bytes, first_seq: int) -> None:
    try:
        record = decode_journal(data, first_seq)
    except (CorruptRecordError, NewerFormatError, WireError) as error:
        says_why(error)
        return
    assert record.encode() == data


@given(
    hostile(
        [
            layout.snapshot_key(SEGMENT_ID, 5, 1),
            layout.journal_key(SEGMENT_ID, 41),
        ]
    )
)
@fuzzed(200)
def test_a_log_key_is_read_or_refused(key: bytes) -> None:
    try:
        parsed = layout.parse_log_key(key)
    except CorruptRecordError:
        return
    again = (
        layout.snapshot_key(parsed.segment_id, parsed.generation, parsed.chunk)
        if parsed.first_seq is None
        else layout.journal_key(parsed.segment_id, parsed.first_seq)
    )
    assert again[2:] == key[2:]


LOG_KEYS = [
    layout.journal_key(SEGMENT_ID, 101),
    layout.journal_key(SEGMENT_ID, 41),
    layout.snapshot_key(SEGMENT_ID, 5, 0),
    layout.snapshot_key(SEGMENT_ID, 5, 1),
]


@given(
    st.one_of(st.just(RECORDS[1][1]), registry_values(RECORDS[1][1])),
    st.one_of(st.just(RECORDS[2][1]), registry_values(RECORDS[2][1])),
    st.lists(st.tuples(hostile(LOG_KEYS), hostile([*JOURNAL, *SNAPSHOT])), max_size=6),
)
@fuzzed(200)
def test_whatever_lies_in_a_store_the_rest_of_it_loads(
    namespace: bytes, segment: bytes, log: list[tuple[bytes, bytes]]
) -> None:
    corrupt: list[CorruptRecord] = []
    replay = Replay(corrupt.append)
    honest_id = bytes(16)
    honest_log = Record(RecordKind.JOURNAL, 1, 4, GROUPS[0]).encode()
    try:
        replay.load_cluster(RECORDS[0][1])
        replay.load_namespace(layout.namespace_key(bytes(32)), namespace)
        replay.load_segment(layout.segment_key(SEGMENT_ID), segment)
        replay.load_segment(layout.segment_key(honest_id), SegmentRecord(9, ENDPOINT).encode())
        replay.load_log(log)
        replay.load_log([(layout.journal_key(honest_id, 1), honest_log)])
    except (NewerFormatError, StoreError) as error:
        says_why(error)
        return
    honest = [s for s in replay.segments() if s.segment_id == honest_id]
    if honest:  # else the other one has its index
        assert honest[0].durable_seq == 4 and not honest[0].damaged
    assert all(report.why for report in corrupt)


@given(
    hostile(
        [
            encode_op(OpKind.PUT, b"key", b"value") + encode_op(OpKind.DELETE_RANGE, b"a", b"b"),
            encode_pair(b"key", b"value") + encode_pair(b"", b""),
        ]
    )
)
@fuzzed(200)
def test_what_the_process_of_rocksdb_hears_and_says_is_whole_or_refused(data: bytes) -> None:
    for decode, encode in (
        (decode_ops, lambda all: b"".join(encode_op(OpKind(kind), a, b) for kind, a, b in all)),
        (decode_pairs, lambda all: b"".join(encode_pair(a, b) for a, b in all)),
    ):
        try:
            read = decode(data)
        except ValueError:
            continue
        if decode is decode_pairs or all(kind in list(OpKind) for kind, *_ in read):
            assert encode(read) == data
