"""Answers PLACE: what the directory has already, and where the rest goes. Knows how full segments are between their reports."""

from __future__ import annotations

from kvstore.master.state.data_paths import DataPaths
from kvstore.master.state.directory_state import DirectoryState
from kvstore.master.state.events import HeartbeatReceived
from kvstore.master.state.placement import Candidate, PlacementPolicy


class Placer:
    """`run_bytes`: a batch is striped over segments in runs of about this size."""

    def __init__(
        self, state: DirectoryState, policy: PlacementPolicy, run_bytes: int, data_paths: DataPaths
    ) -> None:
        self._state = state
        self._data_paths = data_paths
        self._policy = policy
        self._run_bytes = run_bytes
        self._candidates: dict[int, Candidate] = {}  # by segment index
        self._choosable: list[Candidate] = []  # the same
        self._version = -1  # of the membership that they are of
        self.copies_beside = 0  # copies placed on a host that has one already, for there was no other
        self.copies_short = 0  # copies asked for that no segment was there for

    def place(self, now: float, body: bytes, preferred: int, replicas: int = 1) -> bytes:
        """The fields of a PLACE reply, for so many copies of each object. Raises WireError of the native module."""
        if replicas > 1:
            return self._place_copies(now, body, preferred, replicas)
        index = self._state.index
        absent, demand_bytes = index.place_demand(body)
        chosen: list[Candidate] = []
        if absent:
            runs = -(-demand_bytes // self._run_bytes)
            chosen = self._policy.choose(now, self._placeable(), preferred, demand_bytes, runs)
            for candidate in chosen:
                candidate.placed_bytes += demand_bytes // len(chosen)
        return index.place(body, [candidate.index for candidate in chosen], self._run_bytes)

    def _place_copies(self, now: float, body: bytes, preferred: int, replicas: int) -> bytes:
        index = self._state.index
        candidates = self._placeable()
        missing, demand_bytes = index.place_demand(body, replicas)
        stripes: list[list[Candidate]] = []
        if missing:
            first_bytes = -(-demand_bytes // replicas)
            runs = -(-first_bytes // self._run_bytes)
            for first in self._policy.choose(now, candidates, preferred, first_bytes, runs):
                copies = self._policy.choose_copies(now, candidates, first, replicas - 1)
                stripes.append([first, *copies])
            for stripe in stripes:
                for candidate in stripe:
                    candidate.placed_bytes += first_bytes // len(stripes)
        indexes = [[candidate.index for candidate in stripe] for stripe in stripes]
        reply, beside, short = index.place_copies(body, replicas, indexes, self._run_bytes)
        self.copies_beside += beside
        self.copies_short += short
        return reply

    def reported(self, event: HeartbeatReceived) -> None:
        """A segment has said how full it is, and the state has heard of it."""
        segment = self._state.segments.get(event.segment_id)
        candidate = self._candidates.get(segment.index) if segment is not None else None
        if segment is not None and candidate is not None:
            candidate.used_bytes, candidate.placed_bytes = event.used_bytes, 0
            candidate.evicted_at = segment.evicted_at

    def _placeable(self) -> list[Candidate]:
        if not self._state.logs.space.takes_journal:
            return []  # what is put now would not become durable
        if self._version != self._state.membership_version:
            self._version = self._state.membership_version
            self._candidates = {
                s.index: Candidate(
                    s.index,
                    s.record.endpoint.capacity_bytes,
                    s.used_bytes,
                    s.fresh_since,
                    evicted_at=s.evicted_at,
                    host=s.record.endpoint.host,
                )
                for s in self._state.segments
                if s.placeable
            }
            hosts: dict[str, int] = {}
            for s in self._state.segments:
                number = hosts.setdefault(s.record.endpoint.host, len(hosts) + 1)
                self._state.index.set_host(s.index, number)
            self._choosable = list(self._candidates.values())
        shut = self._data_paths.shut
        if not shut:
            return self._choosable
        # Where clients reach none of them, theirs is as good a guess as any.
        return [c for c in self._choosable if c.index not in shut] or self._choosable
