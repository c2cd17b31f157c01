"""Answers PLACE: what the directory has already, and where the rest goes. Knows how full segments are between their reports.

A segment reports its bytes once a second. Since then count what its journal has brought, and what was placed there and has not
come yet: neither a report, which may be older than what was placed, nor a change among the segments makes that forgotten.
"""

from __future__ import annotations

from kvstore.master.state.data_paths import DataPaths
from kvstore.master.state.directory_state import DirectoryState
from kvstore.master.state.events import HeartbeatReceived
from kvstore.master.state.placed_bytes import PlacedBytes
from kvstore.master.state.placement import Candidate, PlacementPolicy
from kvstore.master.state.segment_table import Segment


class Placer:
    """`run_bytes`: a batch is striped over segments in runs of about this size."""

    def __init__(
        self, state: DirectoryState, policy: PlacementPolicy, run_bytes: int, data_paths: DataPaths
    ) -> None:
        self._state = state
        self._data_paths = data_paths
        self._policy = policy
        self._run_bytes = run_bytes
        self._known: dict[int, _Known] = {}  # by segment index, which is that of one memory
        self._choosable: list[Candidate] = []  # those of them that take new objects
        self._version = -1  # of the membership that they are of
        self.copies_beside = 0  # copies placed on a host that has one already, for there was no other
        self.copies_short = 0  # copies asked for that no segment was there for

    def place(
        self, now: float, body: bytes, preferred: int, replicas: int = 1, *, refused: bool = False
    ) -> bytes:
        """The fields of a PLACE reply, for so many copies of each object; `refused`: only what is there already is answered.
        Raises WireError of the native module."""
        if replicas > 1:
            return self._place_copies(now, body, preferred, replicas, refused=refused)
        index = self._state.index
        absent, demand_bytes = index.place_demand(body)
        chosen: list[Candidate] = []
        if absent and not refused:
            runs = -(-demand_bytes // self._run_bytes)
            chosen = self._policy.choose(now, self._placeable(now), preferred, demand_bytes, runs)
            for candidate in chosen:
                self._known[candidate.index].placed(now, demand_bytes // len(chosen))
        return index.place(body, [candidate.index for candidate in chosen], self._run_bytes)

    def _place_copies(
        self, now: float, body: bytes, preferred: int, replicas: int, *, refused: bool
    ) -> bytes:
        index = self._state.index
        missing, demand_bytes = index.place_demand(body, replicas)
        stripes: list[list[Candidate]] = []
        if missing and not refused:
            candidates = self._placeable(now)
            first_bytes = -(-demand_bytes // replicas)
            runs = -(-first_bytes // self._run_bytes)
            for first in self._policy.choose(now, candidates, preferred, first_bytes, runs):
                copies = self._policy.choose_copies(now, candidates, first, replicas - 1)
                stripes.append([first, *copies])
            for stripe in stripes:
                for candidate in stripe:
                    self._known[candidate.index].placed(now, first_bytes // len(stripes))
        indexes = [[candidate.index for candidate in stripe] for stripe in stripes]
        reply, beside, short = index.place_copies(body, replicas, indexes, self._run_bytes)
        self.copies_beside += beside
        self.copies_short += short
        return reply

    def reported(self, now: float, event: HeartbeatReceived) -> None:
        """A segment has said how full it is, and the state has heard of it."""
        segment = self._state.segments.get(event.segment_id)
        known = self._known.get(segment.index) if segment is not None else None
        if segment is not None and known is not None:
            known.arrived(
                self._indexed_bytes(segment)
            )  # nothing of what comes before the report is to count twice
            known.candidate.used_bytes = event.used_bytes
            known.candidate.evicted_at = segment.evicted_at
            known.expire(now)

    def journaled(self, segment_id: bytes) -> None:
        """The index has something new of a segment's journal."""
        segment = self._state.segments.get(segment_id)
        known = self._known.get(segment.index) if segment is not None else None
        if segment is not None and known is not None:
            known.arrived(self._indexed_bytes(segment))

    def _placeable(self, now: float) -> list[Candidate]:
        if not self._state.logs.space.takes_journal:
            return []  # what is put now would not become durable
        if self._version != self._state.membership_version:
            self._version = self._state.membership_version
            self._look_again(now)
        shut = self._data_paths.shut
        if not shut:
            return self._choosable
        # Where clients reach none of them, theirs is as good a guess as any.
        return [c for c in self._choosable if c.index not in shut] or self._choosable

    def _look_again(self, now: float) -> None:
        """Segments have come, gone or changed. Of those that are still there what is known stays known."""
        before, self._known = self._known, {}
        self._choosable = []
        hosts: dict[str, int] = {}
        for segment in self._state.segments:
            host = segment.record.endpoint.host
            self._state.index.set_host(segment.index, hosts.setdefault(host, len(hosts) + 1))
            known = before.get(segment.index) or _Known(segment, self._indexed_bytes(segment))
            known.look_again(now, segment)
            self._known[segment.index] = known
            if segment.placeable:
                self._choosable.append(known.candidate)

    def _indexed_bytes(self, segment: Segment) -> int:
        return self._state.index.segment_usage(segment.index)[1]


class _Known:
    """A segment's candidate, kept up to date."""

    __slots__ = ("_indexed_bytes", "_on_the_way", "candidate")

    def __init__(self, segment: Segment, indexed_bytes: int) -> None:
        self.candidate = Candidate(
            segment.index, segment.record.endpoint.capacity_bytes, segment.used_bytes, segment.fresh_since
        )
        self._on_the_way = PlacedBytes()
        self._indexed_bytes = indexed_bytes

    def look_again(self, now: float, segment: Segment) -> None:
        self.candidate.capacity_bytes = segment.record.endpoint.capacity_bytes
        self.candidate.host = segment.record.endpoint.host
        self.candidate.fresh_since = segment.fresh_since
        self.candidate.evicted_at = segment.evicted_at
        self.expire(now)

    def placed(self, now: float, size_bytes: int) -> None:
        self._on_the_way.placed(now, size_bytes)
        self.candidate.placed_bytes = self._on_the_way.total

    def expire(self, now: float) -> None:
        self._on_the_way.expire(now)
        self.candidate.placed_bytes = self._on_the_way.total

    def arrived(self, indexed_bytes: int) -> None:
        """The index has so much of it now. What came and went between two calls is not seen: it counts as on its way until it
        expires, on a segment that evicts and has no room anyway."""
        grown = indexed_bytes - self._indexed_bytes
        self._indexed_bytes = indexed_bytes
        self.candidate.used_bytes = max(0, self.candidate.used_bytes + grown)
        self._on_the_way.arrived(grown)
        self.candidate.placed_bytes = self._on_the_way.total
