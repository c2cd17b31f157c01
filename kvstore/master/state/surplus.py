"""Which copies of a page are too many. No IO, no state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Holder:
    """A segment that has a copy and is heard."""

    index: int
    host: str
    leaving: bool  # takes no new pages, and is to lose those it has
    pressure: float  # the share of its capacity that is in use


def surplus(holders: Sequence[Holder], wanted: int) -> list[int]:
    """The indexes of those that may drop their copy, so that `wanted` (1 at least) are left: the ones that stay are on different
    hosts where that can be, then on segments that stay themselves, then on those with most room.
    """
    left = sorted(holders, key=lambda holder: (holder.leaving, holder.pressure, holder.index))
    hosts: set[str] = set()
    for _ in range(min(max(wanted, 1), len(left))):
        stays = next((holder for holder in left if not holder.leaving and holder.host not in hosts), left[0])
        hosts.add(stays.host)
        left.remove(stays)
    return [holder.index for holder in left]
