"""Which copies of a page are too many. No IO, no state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Holder:
    """A segment that has a copy, is heard and does not drain."""

    index: int
    host: str
    suspect: bool  # its heartbeats are late
    pressure: float  # the share of its capacity that is in use


def surplus(holders: Sequence[Holder], wanted: int) -> list[int]:
    """The indexes of those that may drop their copy, so that `wanted` (1 at least) are left: the ones that stay are on different
    hosts where that can be, then on segments that nobody doubts, then on those with most room.
    """
    left = sorted(holders, key=lambda holder: (holder.suspect, holder.pressure, holder.index))
    hosts: set[str] = set()
    for _ in range(min(max(wanted, 1), len(left))):
        stays = next((holder for holder in left if not holder.suspect and holder.host not in hosts), left[0])
        hosts.add(stays.host)
        left.remove(stays)
    return [holder.index for holder in left]
