"""Durations as people write them."""

from __future__ import annotations

import pytest

from kvstore.common.durations import parse_duration_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [("90s", 90_000), ("30min", 1_800_000), ("1.5 h", 5_400_000), ("1d", 86_400_000), ("5MS", 5), ("0s", 0)],
)
def test_a_duration_has_a_number_and_a_unit(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "90", "s", "1 week", "-1s", "1e3s", "1m", "nan s", "9" * 20 + "s"])
def test_what_is_none_is_refused_with_the_forms_that_there_are(text: str) -> None:
    with pytest.raises(ValueError, match="as in 90s, 30min or 6h"):
        parse_duration_ms(text)
