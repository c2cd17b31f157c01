"""What a fault is: when it comes, whom it hits, and what its kind does."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass

from simulation.cluster import Cluster


@dataclass(frozen=True)
class Fault:
    kind: str
    at_s: float
    for_s: float
    a: str = ""
    b: str = ""
    size: float = 0.0

    def __str__(self) -> str:
        whom = "-".join(part for part in (self.a, self.b) if part)
        return f"{self.kind} {whom} at {self.at_s:.2f} s for {self.for_s:.2f} s, {self.size:.2f}"


class Kind(ABC):
    """`draw(dice, masters, segments)`: (a, b). `weight`: how often it comes, against the others."""

    weight = 1.0
    longest_s = 6.0

    def draw(self, dice: random.Random, masters: list[str], segments: list[str]) -> tuple[str, str]:
        return "", ""

    @abstractmethod
    def begin(self, cluster: Cluster, fault: Fault) -> None: ...

    def end(self, cluster: Cluster, fault: Fault) -> None:
        return
