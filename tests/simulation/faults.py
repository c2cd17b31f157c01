"""What goes wrong in a run, drawn beforehand: what, when, for how long, to whom.

A fault is a class with `begin` and, where it lasts, `end`; `draw` says whom it hits. Its name in FAULTS is what a run's options choose
by. Every fault has ended when its time is over: what was killed runs again, what was cut is whole.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulation.cluster import LEADER_KEY, Cluster
from simulation.process import Process


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


class Kind:
    """`draw(dice, masters, segments)`: (a, b). `weight`: how often it comes, against the others."""

    weight = 1.0
    longest_s = 6.0

    def draw(self, dice: random.Random, masters: list[str], segments: list[str]) -> tuple[str, str]:
        return "", ""

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        raise NotImplementedError

    def end(self, cluster: Cluster, fault: Fault) -> None:
        return


class Cut(Kind):
    """Two hosts don't reach each other."""

    weight = 2.0
    longest_s = 12.0

    def draw(self, dice: random.Random, masters: list[str], segments: list[str]) -> tuple[str, str]:
        return dice.choice(masters), dice.choice(["etcd", *masters, *segments, *segments])

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        if fault.a != fault.b:
            cluster.network.cut(fault.a, fault.b)

    def end(self, cluster: Cluster, fault: Fault) -> None:
        if fault.a != fault.b:
            cluster.network.heal(fault.a, fault.b)


class Slow(Kind):
    """What two hosts say to each other takes up to `size` seconds more."""

    def draw(self, dice: random.Random, masters: list[str], segments: list[str]) -> tuple[str, str]:
        return dice.choice(masters), dice.choice(["etcd", *segments])

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        cluster.network.slow[frozenset((fault.a, fault.b))] = fault.size

    def end(self, cluster: Cluster, fault: Fault) -> None:
        cluster.network.slow.pop(frozenset((fault.a, fault.b)), None)


class Lossy(Kind):
    """Connections between two hosts break again and again, with what they carry."""

    def draw(self, dice: random.Random, masters: list[str], segments: list[str]) -> tuple[str, str]:
        return dice.choice(masters), dice.choice(["etcd", *segments, "c0"])

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        cluster.network.lossy[frozenset((fault.a, fault.b))] = fault.size * 0.3

    def end(self, cluster: Cluster, fault: Fault) -> None:
        cluster.network.lossy.pop(frozenset((fault.a, fault.b)), None)


class BreakStream(Kind):
    """Each connection between a segment and the masters breaks, once. No excuse for blind reads."""

    weight = 2.0

    def draw(self, dice: random.Random, masters: list[str], segments: list[str]) -> tuple[str, str]:
        return dice.choice(segments), ""

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        for master in cluster.master_hosts:
            cluster.network.break_connections(fault.a, master)


class CrashMaster(Kind):
    def draw(self, dice: random.Random, masters: list[str], segments: list[str]) -> tuple[str, str]:
        return dice.choice(masters), ""

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        if cluster.masters[fault.a].process.alive:
            cluster.kill_master(fault.a)

    def end(self, cluster: Cluster, fault: Fault) -> None:
        if not cluster.masters[fault.a].process.alive:
            cluster.start_master(fault.a)


class CrashLeader(CrashMaster):
    """Whoever leads then."""

    def draw(self, dice: random.Random, masters: list[str], segments: list[str]) -> tuple[str, str]:
        return "", ""

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        leader = cluster.leader()
        if leader is not None:
            cluster.kill_master(leader.host)

    def end(self, cluster: Cluster, fault: Fault) -> None:
        for host, node in cluster.masters.items():
            if not node.process.alive:
                cluster.start_master(host)


class CrashSegment(Kind):
    """It comes back with new memory."""

    def draw(self, dice: random.Random, masters: list[str], segments: list[str]) -> tuple[str, str]:
        return dice.choice(segments), ""

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        if cluster.segments[fault.a].process.alive:
            cluster.kill_segment(fault.a)

    def end(self, cluster: Cluster, fault: Fault) -> None:
        if not cluster.segments[fault.a].process.alive:
            cluster.start_segment(fault.a)


class RestartSegment(CrashSegment):
    """Its memory outlives it."""

    def end(self, cluster: Cluster, fault: Fault) -> None:
        node = cluster.segments[fault.a]
        if not node.process.alive:
            cluster.start_segment(fault.a, None if node.left else node.pool)


class Leave(Kind):
    """It says goodbye, ends, and comes back with new memory."""

    def draw(self, dice: random.Random, masters: list[str], segments: list[str]) -> tuple[str, str]:
        return dice.choice(segments), ""

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        cluster.segments[fault.a].leave("simulated")

    def end(self, cluster: Cluster, fault: Fault) -> None:
        if cluster.segments[fault.a].process.alive:
            cluster.kill_segment(fault.a)
        cluster.start_segment(fault.a)


class Drain(Kind):
    def draw(self, dice: random.Random, masters: list[str], segments: list[str]) -> tuple[str, str]:
        return dice.choice(segments), ""

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        self._set(cluster, fault.a, True)

    def end(self, cluster: Cluster, fault: Fault) -> None:
        self._set(cluster, fault.a, False)

    @staticmethod
    def _set(cluster: Cluster, host: str, draining: bool) -> None:
        leader = cluster.leader()
        if leader is None:
            return
        segment_id = cluster.segments[host].segment_id

        async def ask() -> None:
            try:
                await cluster.network.call(
                    operator, leader.host, "drain", segment_id, draining, timeout_s=5.0
                )
                answer = "done"
            except Exception as error:  # whatever it is, it is an answer
                answer = str(error)
            cluster.log.say("operator", f"drain {host} {draining}: {answer}")

        operator = Process(cluster.loop, "operator")
        operator.start(ask(), "drain")


class Evict(Kind):
    """A segment runs short of memory, and evicts up to a third of what it holds."""

    def draw(self, dice: random.Random, masters: list[str], segments: list[str]) -> tuple[str, str]:
        return dice.choice(segments), ""

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        pool = cluster.segments[fault.a].pool
        pool.evict(cluster.loop.time(), int(fault.size * len(pool.pages) / 3))


class ClockStep(Kind):
    """A master stands still, as a suspended machine does, and its clock is ahead by `size` x 15 s when it goes on."""

    def draw(self, dice: random.Random, masters: list[str], segments: list[str]) -> tuple[str, str]:
        return dice.choice(masters), ""

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        cluster.masters[fault.a].process.clock_offset_s += fault.size * 15.0
        cluster.disturb(fault.a)


class LoseLease(Kind):
    """etcd ends the leader's lease; the leader hears of it when it does."""

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        if lease := cluster.etcd.lease_of(cluster.etcd_options.key_prefix + LEADER_KEY):
            cluster.etcd.revoke(lease)


class CompactRevisions(Kind):
    """etcd forgets its past at once, and the watches of a master break."""

    def draw(self, dice: random.Random, masters: list[str], segments: list[str]) -> tuple[str, str]:
        return dice.choice(masters), ""

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        cluster.etcd.end_watches_of(fault.a)
        if cluster.etcd.compacted < cluster.etcd.revision:
            cluster.etcd.compact(cluster.etcd.revision)


class _EtcdFault(Kind):
    """Part of what is asked of etcd is answered with an error."""

    weight = 1.5
    share = 1.0
    answer = "refuse"
    methods: tuple[str, ...] = ("Txn",)

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        dice = random.Random(int(fault.at_s * 1e6))

        def answer(method: str, host: str) -> str | None:
            mine = not fault.a or host == fault.a
            return self.answer if mine and method in self.methods and dice.random() < self.share else None

        cluster.etcd.fault = answer

    def end(self, cluster: Cluster, fault: Fault) -> None:
        cluster.etcd.fault = lambda method, host: None


class WritesFail(_EtcdFault):
    """Nothing is written. No excuse for blind reads."""


class WritesUnknown(_EtcdFault):
    """Half of what is written is answered with an error though it was done."""

    answer = "forget"
    share = 0.5


class WritesLate(_EtcdFault):
    """A third of what is written is answered with an error, and done up to two seconds later."""

    answer = "late"
    share = 0.3

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        super().begin(cluster, fault)
        dice = random.Random(int(fault.at_s * 1e6) + 1)
        cluster.etcd.late_s = lambda: dice.random() * 2.0


class WatchLags(Kind):
    """A master hears nothing of what is written, and then all at once."""

    def draw(self, dice: random.Random, masters: list[str], segments: list[str]) -> tuple[str, str]:
        return dice.choice(masters), ""

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        cluster.etcd.hold_watches(fault.a)

    def end(self, cluster: Cluster, fault: Fault) -> None:
        cluster.etcd.release_watches(fault.a)


class ReadsFail(_EtcdFault):
    """One master can read nothing of what was."""

    methods = ("Range",)
    longest_s = 4.0

    def draw(self, dice: random.Random, masters: list[str], segments: list[str]) -> tuple[str, str]:
        return dice.choice(masters), ""


class SlowStore(Kind):
    """Each request takes up to `size` seconds more."""

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        dice = random.Random(int(fault.at_s * 1e6))
        cluster.etcd.delay_s = lambda: dice.random() * fault.size * 0.4

    def end(self, cluster: Cluster, fault: Fault) -> None:
        cluster.etcd.delay_s = lambda: 0.0


class AbsurdEntry(Kind):
    """A segment announces an object of an impossible length, as bad memory might."""

    def draw(self, dice: random.Random, masters: list[str], segments: list[str]) -> tuple[str, str]:
        return dice.choice(segments), ""

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        node = cluster.segments[fault.a]
        if node.process.alive and not node.left:
            node.pool.announce((b"absurd__", bytes(15) + b"\x01"), (1 << 31) + 7)


class Clone(Kind):
    """A second segment starts from a copy of the first one's data directory: the same id, other memory."""

    longest_s = 10.0

    def draw(self, dice: random.Random, masters: list[str], segments: list[str]) -> tuple[str, str]:
        return dice.choice(segments), ""

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        cluster.start_segment(f"{fault.a}-clone", segment_id=cluster.segments[fault.a].segment_id)

    def end(self, cluster: Cluster, fault: Fault) -> None:
        cluster.kill_segment(f"{fault.a}-clone")
        del cluster.segments[f"{fault.a}-clone"]


FAULTS: dict[str, Callable[[], Kind]] = {
    "cut": Cut,
    "slow": Slow,
    "lossy": Lossy,
    "break-stream": BreakStream,
    "crash-master": CrashMaster,
    "crash-leader": CrashLeader,
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
