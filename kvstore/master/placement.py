"""Where new objects go. A policy sees candidates and a demand and names segments; it keeps no state of its
own but its dice.

A new policy is a class with `choose` and an entry in POLICIES.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Candidate:
    """A segment that takes new objects."""

    index: int
    capacity_bytes: int
    used_bytes: int
    fresh_since: float
    placed_bytes: int = 0  # since used_bytes was last reported

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self.used_bytes - self.placed_bytes


class PlacementPolicy(Protocol):
    def choose(
        self, now: float, candidates: Sequence[Candidate], preferred: int, demand_bytes: int, runs: int
    ) -> list[Candidate]:
        """Segments for `runs` runs of a batch, to be used in turn; empty: there is none to take it.

        `preferred` is the index of a segment on the writer's host, or one that no candidate has.
        """
        ...


class HostFirstTwoChoices:
    """The writer's own host if it has room, else for each run the better of two segments drawn at random.

    Better is: more free bytes, where a segment that has just joined counts only part of its own for a while.
    Two draws bound the share of any one segment to twice its fair one, an empty newcomer's too. Full
    segments are no worse than each other: they evict.
    """

    def __init__(self, rng: random.Random, *, stripe_max: int = 8, slow_start_s: float = 60.0) -> None:
        self._rng = rng
        self._stripe_max = stripe_max
        self._slow_start_s = slow_start_s

    def choose(
        self, now: float, candidates: Sequence[Candidate], preferred: int, demand_bytes: int, runs: int
    ) -> list[Candidate]:
        if not candidates:
            return []
        chosen = [self._better_of_two(now, candidates) for _ in range(max(1, min(runs, self._stripe_max)))]
        home = next((c for c in candidates if c.index == preferred), None)
        if home is not None and (
            home.free_bytes >= demand_bytes or all(c.free_bytes < demand_bytes for c in chosen)
        ):
            return [home]
        return chosen

    def _better_of_two(self, now: float, candidates: Sequence[Candidate]) -> Candidate:
        if len(candidates) == 1:
            return candidates[0]
        first, second = self._rng.sample(candidates, 2)
        return first if self._score(now, first) >= self._score(now, second) else second

    def _score(self, now: float, candidate: Candidate) -> float:
        age_s = now - candidate.fresh_since
        ramp = min(1.0, max(0.05, age_s / self._slow_start_s)) if self._slow_start_s > 0 else 1.0
        free = candidate.free_bytes
        return free * ramp if free > 0 else free


def _host_first(rng: random.Random) -> PlacementPolicy:
    return HostFirstTwoChoices(rng)


POLICIES = {"host-first": _host_first}
