"""What happens to masters and segments: they die, start again, leave, are suspended, run short of memory."""

from __future__ import annotations

import random
from collections.abc import Callable

from kvstore.common.errors import CorruptRecordError
from kvstore.master.state import layout
from kvstore.master.state.records import Record, RecordKind
from simulation.cluster import Cluster
from simulation.etcd_model import Changes
from simulation.fault import Fault, Kind
from simulation.master_node import MasterNode
from simulation.process import Process


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


class CrashInCompaction(CrashLeader):
    """The leader, soon after etcd has carried out a step of a compaction: mostly before it hears of that, or in the next one."""

    longest_s = 8.0
    _waiting: dict[Fault, Callable[[str, int, Changes], None]]

    def __init__(self) -> None:
        self._waiting = {}

    def begin(self, cluster: Cluster, fault: Fault) -> None:
        def committed(host: str, revision: int, changes: Changes) -> None:
            node = cluster.masters.get(host)
            if node is not None and node.process.alive and _rewrites_a_log(changes, cluster):
                self._stop_waiting(cluster, fault)
                cluster.loop.call_later(fault.size * 0.008, self._kill, cluster, node)

        self._waiting[fault] = committed
        cluster.etcd.on_commit.append(committed)

    def end(self, cluster: Cluster, fault: Fault) -> None:
        self._stop_waiting(cluster, fault)
        super().end(cluster, fault)

    def _stop_waiting(self, cluster: Cluster, fault: Fault) -> None:
        if (committed := self._waiting.pop(fault, None)) is not None:
            cluster.etcd.on_commit.remove(committed)

    @staticmethod
    def _kill(cluster: Cluster, node: MasterNode) -> None:
        if node.process.alive:
            cluster.log.event(node.host, "killed_in_compaction")
            cluster.kill_master(node.host)


def _rewrites_a_log(changes: Changes, cluster: Cluster) -> bool:
    """A snapshot of a part of a log lies in the place of journal records."""
    prefix = cluster.etcd_options.key_prefix
    for key, value in changes:
        if value is None or not key.startswith(prefix + layout.LOGS_PREFIX):
            continue
        if layout.parse_log_key(key[len(prefix) :]).first_seq is not None and _is_snapshot(value):
            return True
    return False


def _is_snapshot(value: bytes) -> bool:
    try:
        return Record.decode(value, RecordKind.SNAPSHOT).kind is RecordKind.SNAPSHOT
    except CorruptRecordError:
        return False


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
        if f"{fault.a}-clone" not in cluster.segments:
            cluster.start_segment(f"{fault.a}-clone", segment_id=cluster.segments[fault.a].segment_id)

    def end(self, cluster: Cluster, fault: Fault) -> None:
        if f"{fault.a}-clone" in cluster.segments:  # one that overlapped may have ended it
            cluster.kill_segment(f"{fault.a}-clone")
            del cluster.segments[f"{fault.a}-clone"]
