"""What goes wrong in a run, drawn beforehand: what, when, for how long, to whom.

A fault's name in FAULTS is what a run's options choose by. Every fault has ended when its time is over: what was killed runs again,
what was cut is whole.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from simulation.cluster import Cluster
from simulation.etcd_faults import (
    CompactRevisions,
    LoseLease,
    ReadsFail,
    SlowStore,
    WatchLags,
    WritesFail,
    WritesLate,
    WritesUnknown,
)
from simulation.fault import Fault, Kind
from simulation.network_faults import (
    BreakStream,
    Cut,
    Lossy,
    Slow,
)
from simulation.process_faults import (
    AbsurdEntry,
    ClockStep,
    Clone,
    CrashInCompaction,
    CrashLeader,
    CrashMaster,
    CrashSegment,
    Drain,
    Evict,
    Leave,
    RestartSegment,
)

FAULTS: dict[str, Callable[[], Kind]] = {
    "cut": Cut,
    "slow": Slow,
    "lossy": Lossy,
    "break-stream": BreakStream,
    "crash-master": CrashMaster,
    "crash-leader": CrashLeader,
    "crash-in-compaction": CrashInCompaction,
    "crash-segment": CrashSegment,
    "restart-segment": RestartSegment,
    "leave": Leave,
    "drain": Drain,
    "evict": Evict,
    "clock-step": ClockStep,
    "lose-lease": LoseLease,
    "compact-revisions": CompactRevisions,
    "writes-fail": WritesFail,
    "writes-unknown": WritesUnknown,
    "writes-late": WritesLate,
    "watch-lags": WatchLags,
    "reads-fail": ReadsFail,
    "slow-store": SlowStore,
    "absurd-entry": AbsurdEntry,
    "clone": Clone,
}


def draw_faults(
    dice: random.Random,
    names: tuple[str, ...],
    count: int,
    over_s: float,
    masters: list[str],
    segments: list[str],
) -> list[Fault]:
    """`count` faults that begin and end within `over_s` seconds."""
    kinds = {name: FAULTS[name]() for name in names}
    weights = [kind.weight for kind in kinds.values()]
    faults = []
    for name in dice.choices(list(kinds), weights, k=count):
        at_s = dice.uniform(0.5, over_s * 0.9)
        for_s = min(dice.uniform(0.3, kinds[name].longest_s), over_s - at_s)
        a, b = kinds[name].draw(dice, masters, segments)
        faults.append(Fault(name, at_s, for_s, a, b, dice.random()))
    return sorted(faults, key=lambda fault: fault.at_s)


def schedule(cluster: Cluster, faults: list[Fault]) -> None:
    """From now on."""
    kinds: dict[str, Any] = {fault.kind: FAULTS[fault.kind]() for fault in faults}

    def begin(fault: Fault) -> None:
        cluster.log.say("fault", f"begins: {fault}")
        _disturb(cluster, fault)
        kinds[fault.kind].begin(cluster, fault)

    def end(fault: Fault) -> None:
        cluster.log.say("fault", f"ends: {fault}")
        kinds[fault.kind].end(cluster, fault)

    for fault in faults:
        cluster.loop.call_later(fault.at_s, begin, fault)
        cluster.loop.call_later(fault.at_s + fault.for_s, end, fault)


def _disturb(cluster: Cluster, fault: Fault) -> None:
    """What a fault between two hosts is an excuse for: that pages of the segment among them are not served."""
    if fault.kind in ("cut", "slow", "lossy") and fault.b != "etcd":
        cluster.disturb(fault.b, fault.for_s)
        if fault.b in cluster.master_hosts:
            cluster.disturb(fault.a, fault.for_s)
