"""Gives out segment indexes, and takes each back when nothing refers to it any more. Part of the state machine; does no IO.

An index stands for the memory of one segment, in the directory's entries, in the segment map, in the durable record. A client may
still have it from an older map: what it asks of the next owner is checked there, by pool id and by the slot's own header, and is a miss.
So an index is free again when

- the table has no segment with it any more, so that the map, whose epoch has moved on, doesn't name it, and
- no durable record names it, so that two never do after a restart, and
- the directory holds no entry under it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from kvstore.master.state import layout

# An index rests until so many others are free, for clients with an old map.
RESTING = 64


class SegmentIndexes:
    """`holds_entries(index)`: whether the directory has any under it."""

    def __init__(self, holds_entries: Callable[[int], bool]) -> None:
        self._holds_entries = holds_entries
        self._next = 0
        self._free: deque[int] = deque()  # in the order in which they became so
        self._left: set[int] = set()  # of these the durable record is still there
        self._removed: set[int] = set()  # and these are still in the table

    def recover(self, used: Collection[int]) -> None:
        """The durable records name these; whatever lies between them is free."""
        self._next = max(used, default=-1) + 1
        self._free = deque(index for index in range(self._next) if index not in used)

    def take(self) -> int | None:
        """One that nothing refers to; None: all of them are in use."""
        if len(self._free) > RESTING or self._next >= layout.SEGMENT_INDEX_MAX:
            for _ in range(min(len(self._free), RESTING)):
                index = self._free.popleft()
                if not self._holds_entries(index):
                    return index
                self._free.append(index)
        if self._next >= layout.SEGMENT_INDEX_MAX:
            return None
        self._next += 1
        return self._next - 1

    def left_table(self, index: int) -> None:
        """No segment of the table has it any more."""
        self._settle(index, self._removed, self._left)

    def record_removed(self, index: int) -> None:
        """That no durable record names it is durable."""
        self._settle(index, self._left, self._removed)

    def _settle(self, index: int, waiting: set[int], other: set[int]) -> None:
        if index in waiting:
            waiting.discard(index)
            self._free.append(index)
        else:
            other.add(index)
