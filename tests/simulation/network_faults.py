"""What goes wrong between two hosts."""

from __future__ import annotations

import random

from simulation.cluster import Cluster
from simulation.fault import Fault, Kind


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
