"""Which page of a draining segment goes where: one walk through its pages, hottest first. Part of the state machine; does no IO.

Pages that another segment holds stay as they are. Others go where most room is, and evict nothing there as long as any segment has
free room. Where none has, a page may take the place of others only while it belongs to the share of the pages that would be left if all
segments' pages were equally hot: so that a drain costs the cluster its coldest pages, and never more than it has to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

# Of its capacity a segment keeps free what its evictor keeps ahead, and some for what is put meanwhile.
ROOM_KEPT = 1 / 64


class DrainPhase(IntEnum):
    WAITING = 1  # the segment is not attached, or of a release that hands nothing out
    MOVING = 2
    DRAINED = 3  # another segment has all that it holds
    NO_ROOM = 4  # what is left fits nowhere; it is tried again
    NO_TARGET = 5  # no other segment takes pages


@dataclass
class DrainProgress:
    """Of the walk that is under way, or the last one."""

    phase: DrainPhase = DrainPhase.WAITING
    moved_objects: int = 0  # since this master leads
    moved_bytes: int = 0
    remaining_objects: int = 0  # that no other segment has, as far as the walk has come
    remaining_bytes: int = 0
    trouble: str = ""  # the last, for people


@dataclass
class Target:
    """A segment that takes pages."""

    index: int
    capacity_bytes: int
    used_bytes: int
    given_bytes: int = 0  # by this walk
    evicting_bytes: int = 0  # of them, those that others may be evicted for
    full: bool = False  # it has said so

    @property
    def room_bytes(self) -> int:
        if self.full:
            return 0
        return int(self.capacity_bytes * (1 - ROOM_KEPT)) - self.used_bytes - self.given_bytes


@dataclass
class MoveOrder:
    """What one target is to copy of one namespace."""

    target: int
    ns: bytes
    may_evict: bool
    fingerprints: list[bytes] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    hot: list[bool] = field(default_factory=list)  # whether others may be evicted for it after all

    size_bytes: int = 0

    def add(self, fingerprint: bytes, length: int, hot: bool) -> None:
        self.fingerprints.append(fingerprint)
        self.lengths.append(length)
        self.hot.append(hot)
        self.size_bytes += length


def kept_share(source_used_bytes: int, targets: Iterable[tuple[int, int]]) -> float:
    """The share of all pages that there is room for without the source. `targets`: (capacity, used) of each."""
    capacity = used = 0
    for capacity_bytes, used_bytes in targets:
        capacity += int(capacity_bytes * (1 - ROOM_KEPT))
        used += used_bytes
    return min(1.0, capacity / max(1, used + source_used_bytes))


class DrainWalk:
    """Fed with the pages of the source in their order, says what to order. `may_evict`: whether anything may be evicted at all."""

    def __init__(
        self,
        source_bytes: int,
        source_used_bytes: int,
        targets: list[Target],
        *,
        may_evict: bool,
        order_objects_max: int,
        order_bytes_max: int,
    ) -> None:
        share = kept_share(source_used_bytes, ((t.capacity_bytes, t.used_bytes) for t in targets))
        self._hot_bytes = int(source_bytes * share) if may_evict else 0
        self._targets = {target.index: target for target in targets}
        self._order_objects_max = order_objects_max
        self._order_bytes_max = order_bytes_max
        self._open: dict[tuple[int, bytes, bool], MoveOrder] = {}
        self._ready: list[MoveOrder] = []
        self._seen_bytes = 0
        self.left_objects = 0  # that found no room

    def held_elsewhere(self, length: int) -> None:
        """The next page of the walk is safe already."""
        self._seen_bytes += length

    def only_here(self, ns: bytes, fingerprint: bytes, length: int) -> None:
        """The next page of the walk is to be moved."""
        hot = self._seen_bytes < self._hot_bytes
        self._seen_bytes += length
        chosen = self._choose(length, hot)
        if chosen is None:
            self.left_objects += 1
            return
        target, evicts = chosen
        target.given_bytes += length
        target.evicting_bytes += length if evicts else 0
        key = target.index, ns, evicts
        order = self._open.setdefault(key, MoveOrder(target.index, ns, evicts))
        if order.fingerprints and order.size_bytes + length > self._order_bytes_max:
            self._ready.append(order)
            order = self._open[key] = MoveOrder(target.index, ns, evicts)
        order.add(fingerprint, length, hot)
        if len(order.fingerprints) >= self._order_objects_max:
            self._ready.append(self._open.pop(key))

    def _choose(self, length: int, hot: bool) -> tuple[Target, bool] | None:
        """(a target, whether it evicts for it)"""
        roomiest = max(self._targets.values(), key=lambda t: t.room_bytes / t.capacity_bytes, default=None)
        if roomiest is None:
            return None
        if roomiest.room_bytes >= length:
            return roomiest, False
        if not hot:
            return None
        return min(self._targets.values(), key=lambda t: t.evicting_bytes / t.capacity_bytes), True

    def target_is_full(self, index: int) -> None:
        """It had no free room left, whatever it seemed to have."""
        self._targets[index].full = True

    def take(self, rest: bool = False) -> list[MoveOrder]:
        """The orders that are full; all of them at the walk's end or where it pauses."""
        ready, self._ready = self._ready, []
        if rest:
            ready += self._open.values()
            self._open = {}
        return ready
