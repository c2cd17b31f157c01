"""What each segment may have of a quota that is the whole cluster's.

A segment keeps to its part by itself, and knows nothing of the others; parts are made anew about once a second. Far below the
quota every segment may have all of it: nothing is to be divided. Near it a segment may have what it has, cut in proportion
where all together have more than TARGET of the quota, and may grow by what is left, and by a little more, so that a tenant can
always write where it is placed.

    one segment             the quota, always
    several, at their most  the quota, FLOOR_BYTES for each segment, and what was written since the parts were made last
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Below this part of the quota nothing is divided.
_NEAR = 7 / 8
# What all together are cut to, so that the little more of each fits.
TARGET = 15 / 16
# What a segment may have at least, so that a batch fits; never more than a quarter of the quota.
FLOOR_BYTES = 4 << 20
# Parts are told in steps of this part of the quota: not each byte that comes is worth a message.
_STEPS = 64
# The directory refuses what is placed once there is so much more than the quota: segments that don't keep to it would go on.
_FAR_ABOVE = 1.25


@dataclass(frozen=True, slots=True)
class Shares:
    """Of one quota, in bytes."""

    others: int  # of each segment that is not named
    by_segment: Mapping[int, int]

    def of(self, segment: int) -> int:
        return self.by_segment.get(segment, self.others)


def divide(limit_bytes: int, held: Mapping[int, int], segments: int) -> Shares:
    """`held`: bytes by segment; `segments`: how many there are that take pages."""
    used = sum(held.values())
    several = segments > 1 or len(held) > 1
    if not several or limit_bytes == 0 or used < _NEAR * limit_bytes:
        return Shares(limit_bytes, {})
    step = max(1, limit_bytes // _STEPS)
    target = int(TARGET * limit_bytes)
    cut = min(1.0, target / used)
    more = _floor(limit_bytes, segments) + max(0, target - used) // step * step
    shares = {
        segment: min(limit_bytes, _up(int(size_bytes * cut), step) + more)
        for segment, size_bytes in held.items()
    }
    return Shares(min(limit_bytes, more), shares)


def is_far_above(limit_bytes: int, used_bytes: int, segments: int) -> bool:
    """Whether nothing more is to be placed: nothing may be, or the segments don't keep to their parts."""
    return limit_bytes == 0 or used_bytes > _FAR_ABOVE * limit_bytes + segments * _floor(
        limit_bytes, segments
    )


def _floor(limit_bytes: int, segments: int) -> int:
    return min(limit_bytes // 4, max(limit_bytes // (16 * max(1, segments)), FLOOR_BYTES))


def _up(size_bytes: int, step: int) -> int:
    return -(-size_bytes // step) * step
