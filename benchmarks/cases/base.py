"""What a case is: it runs the peers, then has tables and bars to show."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.contestants import Contestant
from benchmarks.peers import PeerClient


@dataclass(frozen=True)
class Setting:
    """How large and how often."""

    sizes_bytes: Sequence[int]
    batch: int
    repetitions: int
    load_seconds: float
    progress: Callable[[str], None]


@dataclass(frozen=True)
class Bar:
    """A figure of this release against what it has to be. `value` is None when it could not be measured."""

    what: str
    bound: float
    value: float | None
    at_least: bool = True

    @property
    def cleared(self) -> bool:
        """What could not be measured misses nothing."""
        if self.value is None:
            return True
        return self.value >= self.bound if self.at_least else self.value <= self.bound


class Case(ABC):
    """`clients_max`: how many workers a peer needs, two at least: one writes and one reads."""

    clients_max = 2

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.wrong_pages = 0

    def takes(self, kind: type[PeerClient]) -> bool:
        """Whether such peers are measured: by default all stores, and no limits of the machine."""
        return kind.stores and not kind.durability_only

    @abstractmethod
    def run(self, peers: list[Contestant]) -> None:
        """Measures those that it takes. RuntimeError when a peer answers wrongly."""

    @abstractmethod
    def report(self) -> str:
        """Markdown; empty when there is nothing to show."""

    def bars(self) -> list[Bar]:
        return []


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def over(value: float | None, other: float | None) -> float | None:
    """A ratio, None when one of the two is missing or the second is nothing."""
    return value / other if value is not None and other else None


def shown(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]
