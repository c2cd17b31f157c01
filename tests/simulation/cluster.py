"""Masters, segments, clients, etcd and the network of one run, and where each of them is in its lives."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from kvstore.common.errors import KvstoreError
from kvstore.master.metadata.etcd_options import EtcdOptions
from kvstore.master.state.directory_state import StateLimits
from kvstore.master.state.membership import MembershipLimits
from kvstore.master.state.segment_logs import LogLimits
from simulation.client_node import ClientNode, ClientOptions
from simulation.etcd_model import EtcdModel
from simulation.event_log import EventLog
from simulation.master_node import MasterNode
from simulation.model_pool import ModelPool
from simulation.network import Network
from simulation.oracle import Oracle
from simulation.process import Process
from simulation.segment_node import SegmentNode, SegmentOptions
from simulation.virtual_time import VirtualLoop

# After a fault that touched a host its pages may be unserved for so long: heartbeats, back-off and registration.
DISTURBED_S = 9.0
TERM_KEY = b"\x00term"
LEADER_KEY = b"\x00leader"


@dataclass(frozen=True)
class Options:
    """What a run is made of besides its seed."""

    masters: int = 3
    segments: int = 3
    clients: int = 2
    pool_bytes: int = 5_000
    journal_entries_max: int = 16
    quota_bytes: int = 1 << 30
    lease_s: float = 2.0
    compact_period_s: float = 8.0
    log_limits: LogLimits = field(
        default_factory=lambda: LogLimits(
            1.2, 6, tight_compaction_factor=1.1, tight_compaction_floor_entries=4
        )
    )
    record_entries_max: int = 10  # so that a snapshot has several
    segment: SegmentOptions = field(default_factory=SegmentOptions)
    client: ClientOptions = field(default_factory=ClientOptions)


class Cluster:
    def __init__(
        self, loop: VirtualLoop, dice: random.Random, log: EventLog, options: Options, oracle: Oracle
    ) -> None:
        self.loop = loop
        self.log = log
        self.options = options
        self.oracle = oracle
        self._dice = dice
        self.network = Network(loop, self._die(), log)
        self.etcd_options = EtcdOptions(
            ("etcd:2379",),
            ttl_s=options.lease_s,
            quota_bytes=options.quota_bytes,
            compact_period_s=options.compact_period_s,
            commit_timeout_s=1.0,
        )
        self.etcd = EtcdModel(loop, log, options.quota_bytes)
        self.etcd.on_commit.append(oracle.committed)
        self.network.servers["etcd"] = self.etcd
        oracle.cluster = self
        self.master_hosts = [f"m{i}" for i in range(options.masters)]
        self.segment_hosts = [f"s{i}" for i in range(options.segments)]
        self.client_hosts = [f"c{i}" for i in range(options.clients)]
        self.identities = [b'{"model":"a"}', b'{"model":"b"}']
        self.masters: dict[str, MasterNode] = {}
        self.segments: dict[str, SegmentNode] = {}
        self.clients: dict[str, ClientNode] = {}
        self.pools_made = 0
        self.lives_of_segments = 0
        self._disturbed: dict[str, float] = {}
        for host in self.master_hosts:
            self.start_master(host)
        for host in self.segment_hosts:
            self.start_segment(host)
        for host in self.client_hosts:
            self.clients[host] = ClientNode(
                self.network,
                Process(loop, host),
                log,
                self._die(),
                oracle,
                self.master_hosts,
                self.identities,
                options.client,
            )

    def _die(self) -> random.Random:
        """Each part rolls its own, so that one more roll here changes nothing there."""
        return random.Random(self._dice.getrandbits(64))

    # ---- lives -----------------------------------------------------------------------------------------------

    def start_master(self, host: str) -> None:
        self.log.say(host, "starts")
        limits = StateLimits(membership=MembershipLimits(grace_s=120.0), log=self.options.log_limits)
        self.masters[host] = MasterNode(
            self.network,
            Process(self.loop, host),
            self.log,
            self._die(),
            self.etcd_options,
            limits,
            self._master_failed,
            self.oracle.begins_to_lead,
            self.oracle.ids,
        )

    def kill_master(self, host: str) -> None:
        self.log.say(host, "is killed")
        node = self.masters[host]
        node.process.kill()
        self.network.process_died(node.process)

    def _master_failed(self, node: MasterNode, error: KvstoreError) -> None:
        self.oracle.violate("no master dies of itself", f"{node.host}: {error}")

    def start_segment(
        self, host: str, pool: ModelPool | None = None, segment_id: bytes | None = None
    ) -> None:
        self.log.say(host, "starts" if pool is None else "starts over its old memory")
        self.lives_of_segments += 1
        if pool is None:
            self.pools_made += 1
            pool_id = self._dice.randbytes(15) + b"\x01"
            pool = ModelPool(
                pool_id, self.options.pool_bytes, self.options.journal_entries_max, lambda: self.etcd.revision
            )
        else:
            pool.forget_journal()
        self.segments[host] = SegmentNode(
            self.network,
            Process(self.loop, host),
            self.log,
            self._die(),
            self.master_hosts,
            segment_id or host.encode().ljust(16, b"\x5e"),
            pool,
            self.options.segment,
            lambda why: self.oracle.violate("no segment dies of itself", why),
        )
        self.disturb(host)

    def kill_segment(self, host: str) -> ModelPool:
        self.log.say(host, "is killed")
        node = self.segments[host]
        node.process.kill()
        self.network.process_died(node.process)
        return node.pool

    def kill_all(self) -> None:
        for node in [*self.masters.values(), *self.segments.values(), *self.clients.values(), self.etcd]:
            node.process.kill()

    # ---- who is what -----------------------------------------------------------------------------------------

    def elected(self) -> tuple[str, int] | None:
        """(host, term) of who leads by the store's word."""
        prefix = self.etcd_options.key_prefix
        host, term = self.etcd.get(prefix + LEADER_KEY), self.etcd.get(prefix + TERM_KEY)
        return (host.decode(), int.from_bytes(term, "little")) if host and term else None

    def leader(self) -> MasterNode | None:
        """Who is elected, once it has begun to lead."""
        elected = self.elected()
        node = self.masters.get(elected[0]) if elected is not None else None
        if node is None or not node.process.alive or node.directory is None:
            return None
        return node if (node.host, node.directory.state.term) == elected else None

    def living_segments(self) -> list[SegmentNode]:
        return [node for node in self.segments.values() if node.process.alive and node._leaving is None]

    def disturb(self, host: str, for_s: float = 0.0) -> None:
        """A fault touches it for so long: that its pages are not served is excused until a while after."""
        until = self.loop.time() + for_s + DISTURBED_S
        self._disturbed[host] = max(until, self._disturbed.get(host, until))

    def undisturbed(self, host: str) -> bool:
        return self.loop.time() > self._disturbed.get(host, 0.0)
