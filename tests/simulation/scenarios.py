"""What seeds are played on: everything at once, and a few games in which one kind of trouble comes often."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from kvstore.master.state.segment_logs import LogLimits
from simulation.client_node import ClientOptions
from simulation.cluster import Options
from simulation.faults import FAULTS
from simulation.segment_node import SegmentOptions


@dataclass(frozen=True)
class Scenario:
    name: str
    options: Options = field(default_factory=Options)
    faults: tuple[str, ...] = ()
    faults_max: int = 10
    over_s: float = 11.0
    pause_s: float = 0.18  # of a client between operations, on average
    # How long a cluster may take to come back to rest once nothing fails any more.
    settle_s: float = 40.0
    varied: bool = False  # each seed has numbers and bounds of its own
    drop: frozenset[int] = frozenset()  # numbers of faults that are left out, to find those that matter


# All faults there are.
EVERYTHING = Scenario("everything", faults=tuple(FAULTS), varied=True)
# Objects that can't be are announced again and again.
BAD_MEMORY = Scenario("bad-memory", faults=("absurd-entry", "evict", "break-stream"))
# etcd refuses what is written, and streams break now and then.
FAILING_STORE = Scenario("failing-store", faults=("writes-fail", "writes-unknown", "break-stream", "evict"))
# A journal that hardly keeps anything, so that inventories come often, while standbys can't read.
INVENTORIES = Scenario(
    "inventories",
    Options(journal_entries_max=3),
    ("reads-fail", "evict", "compact-revisions", "restart-segment"),
    faults_max=14,
    over_s=14.0,
)
# A store whose quota is less than twice what the directory needs, and pages that come and go.
TIGHT_STORE = Scenario(
    "tight-store",
    Options(
        segments=6,
        pool_bytes=100_000,
        journal_entries_max=2000,
        quota_bytes=190_000,
        record_entries_max=64,
        log_limits=LogLimits(2.0, 1000, tight_compaction_factor=1.05, tight_compaction_floor_entries=4),
        segment=SegmentOptions(batch_entries_max=64),
        client=ClientOptions(pages=1500, batch_max=64, clear_share=0.0),
    ),
    ("evict",),
    faults_max=60,
    over_s=60.0,
    pause_s=0.8,
)
# Leaders that go while others lag behind.
FAILOVERS = Scenario(
    "failovers", faults=("watch-lags", "watch-lags", "lose-lease", "crash-leader", "writes-late")
)
# Clears follow each other closely, and etcd does what it was asked for late.
CLEARS = Scenario(
    "clears",
    Options(client=ClientOptions(clear_share=0.1)),
    ("writes-late",),
    faults_max=3,
    pause_s=0.1,
)
# Inventories come while logs are rewritten all the time, and what is committed takes its time.
SNAPSHOTS = Scenario(
    "snapshots",
    Options(journal_entries_max=4, log_limits=LogLimits(1.0, 2), segment=SegmentOptions(batch_entries_max=4)),
    ("slow-store", "slow-store", "evict", "restart-segment", "break-stream", "crash-in-compaction"),
    faults_max=14,
)
# Two segments with one id.
CLONES = Scenario("clones", faults=("clone", "break-stream", "crash-leader"))


def options_of(scenario: Scenario, dice: random.Random) -> Options:
    """What a seed is played with."""
    if not scenario.varied:
        return scenario.options
    return replace(
        scenario.options,
        masters=dice.choice((2, 3)),
        segments=dice.choice((2, 3, 4)),
        journal_entries_max=dice.choice((4, 16, 64)),
        pool_bytes=dice.choice((3_000, 6_000)),
        record_entries_max=dice.choice((3, 10, 100)),
        segment=SegmentOptions(dice.choice((1, 8, 64)), dice.choice((1, 4))),
    )


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        EVERYTHING,
        BAD_MEMORY,
        FAILING_STORE,
        INVENTORIES,
        FAILOVERS,
        TIGHT_STORE,
        CLEARS,
        SNAPSHOTS,
        CLONES,
    )
}
