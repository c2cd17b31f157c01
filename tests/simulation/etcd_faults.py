"""What goes wrong in etcd, and between etcd and those that ask it."""

from __future__ import annotations

import random

from simulation.cluster import LEADER_KEY, Cluster
from simulation.fault import Fault, Kind


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
