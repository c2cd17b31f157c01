"""What a master and its process of RocksDB say to each other: whole, or refused."""

from __future__ import annotations

import pytest

from kvstore.master.metadata.rocksdb_messages import OpKind, decode_ops, decode_pairs, encode_op, encode_pair

PAIRS = [(b"key", b"value"), (b"", b""), (b"k", b"v" * 300)]
OPS = [(OpKind.PUT, b"key", b"value"), (OpKind.DELETE, b"key", b""), (OpKind.DELETE_RANGE, b"a", b"b")]


def test_pairs_and_operations_are_read_as_they_were_written() -> None:
    assert decode_pairs(b"".join(encode_pair(*pair) for pair in PAIRS)) == PAIRS
    assert decode_ops(b"".join(encode_op(*op) for op in OPS)) == OPS


def test_pairs_and_operations_that_are_cut_short_are_refused_wherever_the_cut_is() -> None:
    for size in range(1, 14):
        with pytest.raises(ValueError, match="cut short"):
            decode_pairs(encode_pair(b"key", b"value")[:size])
    for size in range(1, 15):
        with pytest.raises(ValueError, match="cut short"):
            decode_ops(encode_op(OpKind.PUT, b"key", b"value")[:size])
