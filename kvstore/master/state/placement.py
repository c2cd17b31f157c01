"""Where new objects go. A policy sees candidates and a demand and names segments; it keeps no state of its
own but its dice.

A new policy is a class with `choose` and an entry in POLICIES.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

# Well below what a segment fills before it evicts, so that batches on their way, which their segment has not reported
# yet, still fit.
ROOM_SHARE = 0.85
# Whoever has evicted this lately is full, whatever its bytes say: what is pinned or in pieces is no room.
EVICTING_S = 30.0


@dataclass(slots=True)
class Candidate:
    """A segment that takes new objects."""

    index: int
    capacity_bytes: int
    used_bytes: int
    fresh_since: float
    placed_bytes: int = 0  # on their way, beside used_bytes
    evicted_at: float = -math.inf  # when it was last seen to evict
    host: str = ""

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self.used_bytes - self.placed_bytes

    @property
    def pressure(self) -> float:
        """The share of its capacity that is in use or on its way there."""
        return (self.used_bytes + self.placed_bytes) / self.capacity_bytes

    def has_room(self, now: float, demand_bytes: int) -> bool:
        """Whether it can take `demand_bytes` without evicting for them."""
        if now - self.evicted_at < EVICTING_S:
            return False
        return self.used_bytes + self.placed_bytes + demand_bytes <= ROOM_SHARE * self.capacity_bytes


class PlacementPolicy(Protocol):
    def choose(
        self, now: float, candidates: Sequence[Candidate], preferred: int, demand_bytes: int, runs: int
    ) -> list[Candidate]:
        """Segments for `runs` runs of a batch, to be used in turn; empty: there is none to take it.

        `preferred` is the index of a segment on the writer's host, or one that no candidate has.
        """
        ...

    def choose_copies(
        self, now: float, candidates: Sequence[Candidate], first: Candidate, count: int
    ) -> list[Candidate]:
        """Segments for `count` further copies of what goes to `first`: on hosts that have none, as long as there are such.
        Fewer where there are no more segments.
        """
        ...


class HostFirstTwoChoices:
    """The writer's own host while it has room, else for each run the better of two segments drawn at random.

    Better is: one with room, then more free bytes, where a segment that has just joined counts only part of its own for a while. Two
    draws bound the share of any one segment to twice its fair one, an empty newcomer's too. Where no segment has
    room every put evicts something, and home is as good as another while it is no fuller than the cluster's mean.
    """

    def __init__(self, rng: random.Random, *, stripe_max: int = 8, slow_start_s: float = 60.0) -> None:
        self._rng = rng
        self._stripe_max = stripe_max
        self._slow_start_s = slow_start_s

    def choose(
        self, now: float, candidates: Sequence[Candidate], preferred: int, demand_bytes: int, runs: int
    ) -> list[Candidate]:
        """See PlacementPolicy."""
        if not candidates:
            return []
        home = next((c for c in candidates if c.index == preferred), None)
        if home is not None and home.has_room(now, demand_bytes):
            return [home]
        if (
            home is not None
            and home.pressure <= _mean_pressure(candidates)
            and not any(c.has_room(now, demand_bytes) for c in candidates)
        ):
            return [home]
        stripes = max(1, min(runs, self._stripe_max))
        return [self._better_of_two(now, candidates) for _ in range(stripes)]

    def choose_copies(
        self, now: float, candidates: Sequence[Candidate], first: Candidate, count: int
    ) -> list[Candidate]:
        """See PlacementPolicy. Each is the better of two drawn at random."""
        chosen = [first]
        while len(chosen) <= count:
            left = [c for c in candidates if c not in chosen]
            hosts = {c.host for c in chosen}
            apart = [c for c in left if c.host not in hosts]
            if not left:
                break
            chosen.append(self._better_of_two(now, apart or left))
        return chosen[1:]

    def _better_of_two(self, now: float, candidates: Sequence[Candidate]) -> Candidate:
        if len(candidates) == 1:
            return candidates[0]
        # Two different ones; `sample` does the same in ten times the time, and this runs once a stripe of each put.
        one = int(self._rng.random() * len(candidates))
        other = int(self._rng.random() * (len(candidates) - 1))
        first, second = candidates[one], candidates[other + (other >= one)]
        return first if self._score(now, first) >= self._score(now, second) else second

    def _score(self, now: float, candidate: Candidate) -> tuple[bool, float]:
        age_s = now - candidate.fresh_since
        ramp = min(1.0, max(0.05, age_s / self._slow_start_s)) if self._slow_start_s > 0 else 1.0
        free = candidate.free_bytes
        return candidate.has_room(now, 0), free * ramp if free > 0 else free


def _mean_pressure(candidates: Sequence[Candidate]) -> float:
    return sum(c.pressure for c in candidates) / len(candidates)


def _host_first(rng: random.Random) -> PlacementPolicy:
    return HostFirstTwoChoices(rng)


POLICIES = {"host-first": _host_first}
