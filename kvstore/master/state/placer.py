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

    def place(self, now: float, body: bytes, preferred: int) -> bytes:
        """The fields of a PLACE reply. Raises WireError of the native module."""
        index = self._state.index
        absent, demand_bytes = index.place_demand(body)
        chosen: list[Candidate] = []
        if absent:
            runs = -(-demand_bytes // self._run_bytes)
            chosen = self._policy.choose(now, self._placeable(), preferred, demand_bytes, runs)
            for candidate in chosen:
                candidate.placed_bytes += demand_bytes // len(chosen)
        return index.place(body, [candidate.index for candidate in chosen], self._run_bytes)

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
                )
                for s in self._state.segments
                if s.placeable
            }
            self._choosable = list(self._candidates.values())
        shut = self._data_paths.shut
        if not shut:
            return self._choosable
        # Where clients reach none of them, theirs is as good a guess as any.
        return [c for c in self._choosable if c.index not in shut] or self._choosable
