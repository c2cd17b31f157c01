"""Runs cases over peers, and says how busy the machine was with anything else meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cases import CASES, Case, Setting
from benchmarks.contestants import (
    FILL_PAGE_BYTES,
    WARM_FRACTION,
    Contestant,
    contestants,
    own_cpu_seconds,
)
from benchmarks.peers import PEERS


@dataclass
class Results:
    """The cases, run, and what was noticed meanwhile."""

    cases: list[Case] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    foreign_cores: float = 0.0
    seconds: float = 0.0

    @property
    def wrong_pages(self) -> int:
        return sum(case.wrong_pages for case in self.cases)


def busy_seconds() -> float:
    """CPU seconds spent by the whole machine, by anyone."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")


def measure(names: Sequence[str], cases: Sequence[str], setting: Setting, pool_bytes: int) -> Results:
    """Warms every peer up, then runs case after case; a case has the peers take turns."""
    results = Results(cases=[CASES[name](setting) for name in cases])
    started, busy = time.monotonic(), busy_seconds()
    # Larger than the caches, so that pages come from and go to memory.
    arena_bytes = max(pool_bytes // 8, 2 * setting.batch * max(FILL_PAGE_BYTES, *setting.sizes_bytes))
    clients = max(case.clients_max for case in results.cases)
    names = [name for name in names if any(case.takes(PEERS[name][1]) for case in results.cases)]
    with contestants(names, pool_bytes, arena_bytes, results.unavailable, clients) as peers:
        own_before = own_cpu_seconds(peers)
        for peer in (peer for peer in peers if not peer.kind.durability_only):
            _warm_up(peer, setting, pool_bytes)
        for case in results.cases:
            if taken := [peer for peer in peers if case.takes(peer.kind)]:
                case.run(taken)
        own_s = own_cpu_seconds(peers) - own_before
        results.seconds = time.monotonic() - started
        results.foreign_cores = max(0.0, (busy_seconds() - busy - own_s) / results.seconds)
    return results


def _warm_up(peer: Contestant, setting: Setting, pool_bytes: int) -> None:
    setting.progress(f"warming up {peer.name}")
    peer.fill(setting.batch, int(WARM_FRACTION * pool_bytes) // (setting.batch * FILL_PAGE_BYTES))
