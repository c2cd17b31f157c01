from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.common.backoff import Backoff


@given(st.integers(0, 2**32))
def test_delays_double_with_jitter_and_stay_under_the_ceiling(seed: int) -> None:
    backoff = Backoff(0.1, 1.0, random.Random(seed))
    for ceiling_s in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert ceiling_s / 2 <= backoff.next_delay_s() <= ceiling_s
    backoff.reset()
    assert backoff.next_delay_s() <= 0.1


def test_two_that_begin_together_do_not_come_back_in_step() -> None:
    one, other = Backoff(rng=random.Random(1)), Backoff(rng=random.Random(2))
    assert all(one.next_delay_s() != other.next_delay_s() for _ in range(10))


@pytest.mark.parametrize("bounds", [(0, 1), (2, 1), (-1, 1)])
def test_bounds_that_make_no_sense_are_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="delay_s_min"):
        Backoff(*bounds)


def test_a_limited_delay_is_short_once_and_never_under_the_shortest() -> None:
    backoff = Backoff(delay_s_min=0.1, delay_s_max=10.0, rng=random.Random(1))
    for _ in range(10):
        backoff.next_delay_s()
    backoff.limit(0.3)
    assert backoff.next_delay_s() <= 0.3
    assert backoff.next_delay_s() > 0.3 * 2 * 0.4
    backoff.limit(0.001)
    assert 0.05 <= backoff.next_delay_s() <= 0.1
