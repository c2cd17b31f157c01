"""Sizes in bytes as people write and read them."""

from __future__ import annotations

import math
import re

_UNIT_BYTES = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kb": 10**3,
    "kib": 1 << 10,
    "m": 1 << 20,
    "mb": 10**6,
    "mib": 1 << 20,
    "g": 1 << 30,
    "gb": 10**9,
    "gib": 1 << 30,
    "t": 1 << 40,
    "tb": 10**12,
    "tib": 1 << 40,
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)")


def parse_size(text: str) -> int:
    """Bytes of `512MiB`, `8GiB`, `1.5TB`, `4g` (binary) or a plain number.

    ValueError names the accepted forms.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = match.group(2).lower() if match else ""
    size = float(match.group(1)) * _UNIT_BYTES.get(unit, 0) if match else math.nan
    if unit not in _UNIT_BYTES or not math.isfinite(size):
        raise ValueError(f"{text!r} is not a size: write a number and a unit, as in 512MiB, 8GiB or 1.5TB")
    return int(size)


def format_size(size_bytes: int) -> str:
    """`size_bytes` for people: 8589934592 -> '8.0 GiB'."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} B"
