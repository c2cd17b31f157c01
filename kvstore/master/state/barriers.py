"""Barriers of `clear`: which segments have confirmed that they serve nothing of a namespace that was cleared.

Each clear has the next number. A segment confirms a number when it has retired all that was cleared up to it, on the stream of
now: one that attaches is told what is current and what was cleared lately, and confirms that. Numbers are those of one leader;
whatever was cleared before it led has the number 0. No IO.
"""

from __future__ import annotations

from collections import OrderedDict

from kvstore.master.state.events import NamespacesRetired
from kvstore.master.state.segment_table import Segment, SegmentTable
from kvstore_client.protocol import SegmentState

CLEARS_MAX = 65_536


class Barriers:
    def __init__(self, segments: SegmentTable) -> None:
        self._segments = segments
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        self.newest = 0

    def cleared(self, ns: bytes) -> int:
        """The number of this clear."""
        self.newest += 1
        self._numbers[ns] = self.newest
        if len(self._numbers) > CLEARS_MAX:
            self._numbers.popitem(last=False)
        return self.newest

    def confirmed(self, event: NamespacesRetired) -> None:
        segment = self._segments.of_session(event.session)
        if segment is not None and segment.registered and event.barrier <= self.newest:
            segment.barrier = max(event.barrier, -1 if segment.barrier is None else segment.barrier)

    def waited_for(self, ns: bytes) -> list[Segment]:
        """Segments that may still serve `ns`, an id that is current no more. Those that are gone from the map are not among
        them: nobody is told of them any more."""
        number = self._numbers.get(ns, 0)
        return [
            segment
            for segment in self._segments
            if segment.state is not SegmentState.GONE
            and (segment.barrier is None or segment.barrier < number)
        ]
