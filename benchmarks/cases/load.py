"""Several clients at once, each in a loop of its own for some seconds: what a load has done, and how long its calls took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from benchmarks.cases.base import Setting
from benchmarks.contestants import Contestant, in_turn

ROUNDS = 3


Kind = TypeVar("Kind", int, str)


@dataclass
class Load:
    """Sums over clients and repetitions."""

    pages: int = 0
    bytes: int = 0
    wall_s: float = 0.0
    missed_pages: int = 0
    wrong_pages: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)  # of each call, by verb
    cpu_s: float = 0.0  # clients and servers

    @property
    def gb_s(self) -> float:
        return self.bytes / self.wall_s / 1e9

    @property
    def pages_s(self) -> float:
        return self.pages / self.wall_s


def run_load(
    peer: Contestant,
    into: Load,
    *,
    clients: int,
    seconds: float,
    get_percent: int,
    count: int,
    size_bytes: int,
    batches_max: int,
) -> None:
    """A wave of `clients` workers. What a client reads it has written before, so that every byte is known."""
    workers = peer.workers[:clients]
    assert len(workers) == clients, f"{peer.name} has {len(peer.workers)} workers"
    arguments = {"seconds": seconds, "count": count, "size_bytes": size_bytes, "get_percent": get_percent}
    cpu_s = peer.server_cpu_seconds()
    for worker in workers:
        first = peer.next_seed + 1
        peer.next_seed += batches_max
        worker.ask("load", seed=first, batches_max=batches_max, **arguments)
    answers = [worker.answer() for worker in workers]
    into.cpu_s += peer.server_cpu_seconds() - cpu_s + sum(answer["cpu_s"] for answer in answers)
    # They begin together and each ends with the call in which its time is over.
    into.wall_s += max(answer["wall_s"] for answer in answers)
    for answer in answers:
        into.pages += answer["done"]
        into.bytes += answer["done"] * size_bytes
        into.missed_pages += answer["missed"]
        into.wrong_pages += answer["wrong_pages"]
        for verb in ("put", "get"):
            into.seconds.setdefault(verb, []).extend(answer[verb])


def run_in_turn(
    peers: list[Contestant],
    setting: Setting,
    loads: dict[tuple[str, Kind], Load],
    kinds: Sequence[tuple[Kind, int, int]],
    *,
    size_bytes: int,
    batches_max: int,
) -> None:
    """Each (kind, clients, get percent) by every peer in rounds, another one first each time; `loads` by (peer, kind) grow."""
    for repetition in range(ROUNDS):
        for peer in in_turn(peers, repetition):
            for kind, clients, get_percent in kinds:
                run_load(
                    peer,
                    loads.setdefault((peer.name, kind), Load()),
                    clients=clients,
                    seconds=setting.load_seconds / ROUNDS,
                    get_percent=get_percent,
                    count=setting.batch,
                    size_bytes=size_bytes,
                    batches_max=batches_max,
                )
