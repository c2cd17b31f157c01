"""Keys of the metadata store: their order is that of the numbers in them, and ranges take what they say."""

from __future__ import annotations

import random

import pytest

from kvstore.common.errors import CorruptRecordError
from kvstore.master.state import layout

ONE, OTHER = b"a" * 16, b"b" * 16
NUMBERS = [0, 1, 255, 256, 65_535, 65_536, (1 << 32) - 1]


def test_keys_of_a_log_are_in_the_order_of_their_numbers_snapshot_first() -> None:
    snapshots = [layout.snapshot_key(ONE, generation, chunk) for generation in NUMBERS for chunk in NUMBERS]
    journal = [layout.journal_key(ONE, seq) for seq in [*NUMBERS, 1 << 32, (1 << 64) - 1]]
    keys = snapshots + journal
    shuffled = random.Random(1).sample(keys, len(keys))
    assert sorted(shuffled) == keys


def test_a_parsed_key_says_what_it_was_made_of() -> None:
    for number in NUMBERS:
        assert layout.parse_log_key(layout.journal_key(ONE, number)) == layout.LogKey(ONE, first_seq=number)
        assert layout.parse_log_key(layout.snapshot_key(ONE, number, 7)) == layout.LogKey(ONE, number, 7)
    for key in (layout.log_prefix(ONE), layout.journal_key(ONE, 1)[:-1], layout.log_prefix(ONE) + b"x" * 9):
        with pytest.raises(CorruptRecordError):
            layout.parse_log_key(key)


def test_the_journal_before_an_entry_is_all_of_it_and_nothing_else() -> None:
    some = layout.journal_before(ONE, 256)
    assert all(some.start <= layout.journal_key(ONE, seq) < some.end for seq in (0, 1, 255))
    assert not some.start <= layout.journal_key(ONE, 256) < some.end
    everything = layout.journal_before(ONE, None)
    assert all(everything.start <= layout.journal_key(ONE, seq) < everything.end for seq in NUMBERS)
    for span in (some, everything):
        assert not span.start <= layout.snapshot_key(ONE, 5, 5) < span.end
        assert not span.start <= layout.journal_key(OTHER, 1) < span.end


def test_a_whole_log_is_that_of_one_segment() -> None:
    span = layout.whole_log(ONE)
    assert all(
        span.start <= key < span.end for key in (layout.journal_key(ONE, 9), layout.snapshot_key(ONE, 9, 9))
    )
    assert not any(
        span.start <= key < span.end for key in (layout.journal_key(OTHER, 9), layout.segment_key(ONE))
    )
