"""A quota of the cluster, divided among segments."""

from __future__ import annotations

import random

import pytest

from kvstore.master.state.quota_shares import FLOOR_BYTES, divide, is_far_above

MIB = 1 << 20
GIB = 1 << 30


def test_one_segment_has_the_whole_quota_whatever_it_holds() -> None:
    for held in ({}, {0: 5 * GIB}, {0: 20 * GIB}):
        assert divide(10 * GIB, held, 1).of(0) == 10 * GIB


def test_far_below_the_quota_nothing_is_divided() -> None:
    shares = divide(10 * GIB, {0: 5 * GIB, 1: 3 * GIB}, 5)
    assert {shares.of(segment) for segment in range(5)} == {10 * GIB}


def test_of_nothing_everybody_has_nothing() -> None:
    shares = divide(0, {0: 5, 1: 7}, 2)
    assert [shares.of(segment) for segment in range(3)] == [0, 0, 0]


def test_what_a_segment_has_stays_in_proportion_and_where_there_is_nothing_yet_a_batch_fits() -> None:
    shares = divide(GIB, {0: 3 * GIB, 1: GIB}, 4)
    assert shares.of(0) == pytest.approx(3 * shares.of(1), rel=0.25)
    assert shares.of(3) >= FLOOR_BYTES


@pytest.mark.parametrize("seed", range(20))
def test_writers_anywhere_keep_within_the_quota_and_what_each_segment_may_have_at_least(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    segments = rng.randint(2, 12)
    quota = rng.choice((64 * MIB, GIB, 50 * GIB))
    held = {segment: rng.randrange(quota // segments * 2) for segment in range(segments)}
    for _ in range(50):
        shares = divide(quota, held, segments)
        assert shares == divide(quota, held, segments), "the same again changes nothing"
        # Everybody keeps to its part, and then writes as much as it likes.
        for segment in rng.sample(range(segments), rng.randint(1, segments)):
            held[segment] = min(held[segment] + rng.randrange(quota), shares.of(segment))
        held = {segment: min(size_bytes, shares.of(segment)) for segment, size_bytes in held.items()}
    # Nobody writes any more: the parts are made once again.
    shares = divide(quota, held, segments)
    total = sum(min(size_bytes, shares.of(segment)) for segment, size_bytes in held.items())
    assert total <= quota + segments * (FLOOR_BYTES + quota // 64)
    assert total >= quota * 3 // 4


def test_a_directory_refuses_only_what_segments_should_not_have_let_come() -> None:
    assert is_far_above(0, 0, 3)
    assert not is_far_above(GIB, GIB + 3 * FLOOR_BYTES, 3)
    assert is_far_above(GIB, 2 * GIB, 3)
