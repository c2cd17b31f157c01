"""Durations as people write them."""

from __future__ import annotations

import re

_UNIT_MS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([a-z]+)")


def parse_duration_ms(text: str) -> int:
    """Milliseconds of `90s`, `30min`, `1.5h`. ValueError names the accepted forms."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or match.group(2) not in _UNIT_MS:
        raise ValueError(f"{text!r} is not a duration: write a number and a unit, as in 90s, 30min or 6h")
    return int(float(match.group(1)) * _UNIT_MS[match.group(2)])
