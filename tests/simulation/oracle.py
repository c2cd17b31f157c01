"""What must hold, whatever fails: told of everything that happens, asked again and again.

It knows what no part of the cluster knows: what every process holds, what the store has committed, and which fault is to blame for what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvstore.common.errors import CorruptRecordError
from kvstore.master.state import layout
from kvstore.master.state.records import Record, RecordKind
from kvstore_client.protocol import MapRecord
from kvstore_client.protocol.journal import JournalGroup, JournalOp, decode_groups
from simulation.event_log import EventLog
from simulation.model_pool import Key
from simulation.segment_ids import SegmentIds

if TYPE_CHECKING:
    from kvstore.master.directory import Directory
    from kvstore.master.state.directory_state import DirectoryState
    from simulation.cluster import Cluster
    from simulation.master_node import MasterNode
    from simulation.segment_node import SegmentNode

FINGERPRINT = 16


class Violation(Exception):
    """`rule` is what does not hold."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class Oracle:
    def __init__(self, log: EventLog, key_prefix: bytes) -> None:
        self._log = log
        self._key_prefix = key_prefix
        self.cluster: Cluster
        self.violation: Violation | None = None
        self.on_violation: Callable[[], None] = lambda: None
        self._durable: dict[tuple[bytes, bytes], None] = {}  # (segment id, fingerprint) ever committed
        self.last_commit_revision = 0
        self._term = 0
        self._clears: dict[bytes, None] = {}  # ids whose barrier is waited for
        self._barriers: dict[bytes, int] = {}  # identity -> epoch before which nothing is served
        self._cleared: dict[bytes, None] = {}  # ids behind a barrier
        self.ids = SegmentIds(self)
        self.acks = self.hits = self.sweeps = self.pages_checked = 0

    def violate(self, rule: str, text: str) -> None:
        if self.violation is None:
            self.violation = Violation(rule, text)
            self._log.say("oracle", f"VIOLATED {self.violation}")
            self.on_violation()

    # ---- the store -------------------------------------------------------------------------------------------

    def committed(self, host: str, revision: int, changes: list[tuple[bytes, bytes | None]]) -> None:
        """EtcdModel.on_commit."""
        internal = self._key_prefix + b"\x00"
        for key, value in changes:
            if key == internal + b"marker":
                self.last_commit_revision = revision
                self._log.say("etcd", f"revision {revision}: {len(changes) - 1} keys of {host}")
                leader = self.cluster.etcd.get(internal + b"leader")
                if leader != host.encode():
                    self.violate(
                        "only the leader writes", f"{host} wrote revision {revision} while {leader!r} led"
                    )
            elif key == internal + b"term" and value is not None:
                term = int.from_bytes(value, "little")
                if term <= self._term:
                    self.violate("only the leader writes", f"term {term} came after term {self._term}")
                self._term = term
                self._log.say("etcd", f"term {term} is that of {host}")
            elif value is not None and key.startswith(self._key_prefix + layout.LOGS_PREFIX):
                self._note_log_record(key[len(self._key_prefix) :], value)

    def _note_log_record(self, key: bytes, value: bytes) -> None:
        at = layout.parse_log_key(key)
        for group in self._groups(value):
            if group.op is JournalOp.ADD:
                for i in range(0, len(group.fingerprints), FINGERPRINT):
                    self._durable[at.segment_id, group.fingerprints[i : i + FINGERPRINT]] = None

    def _groups(self, value: bytes) -> list[JournalGroup]:
        why = ""
        for kind in (RecordKind.JOURNAL, RecordKind.SNAPSHOT):
            try:
                return decode_groups(Record.decode(value, kind).body)
            except CorruptRecordError as error:
                why = str(error)
        self.violate("only whole records are stored", why)
        return []

    # ---- clients ---------------------------------------------------------------------------------------------

    def acked(self, host: str, key: Key) -> None:
        self.acks += 1

    def found(
        self,
        master: str,
        identity: bytes,
        epoch: int,
        began_after: int,
        fingerprint: bytes,
        holder: MapRecord,
    ) -> None:
        """A master has said that `holder` has it. `began_after`: the barrier that had been reached when the client asked."""
        self.hits += 1
        if (holder.segment_id, fingerprint) not in self._durable:
            self.violate(
                "nothing is found before it is committed",
                f"{master} finds {fingerprint.hex()} on {holder.host}",
            )
        if epoch < began_after:
            self.violate(
                "nothing is served after a cleared barrier",
                f"{master} answers for epoch {epoch} of {identity!r}",
            )

    def served(self, host: str, key: Key, value: str, expected: str) -> None:
        if value != expected:
            self.violate("nothing wrong is served", f"{host} served {value} for {expected}")

    def cleared(self, ns: bytes) -> None:
        """A clear of this id has been acknowledged, and is waited for."""
        self._clears[ns] = None

    def barrier_reached(self, identity: bytes, epoch: int, old_ns: bytes) -> None:
        """By the product's word nobody answers for `old_ns` any more."""
        self._clears.pop(old_ns, None)
        self._barriers[identity] = max(epoch, self._barriers.get(identity, 0))
        self._cleared[old_ns] = None

    @property
    def clears_pending(self) -> int:
        """Clears that were acknowledged and have not reached everyone."""
        return len(self._clears)

    def barrier(self, identity: bytes) -> int:
        """Epochs below it must not be served any more."""
        return self._barriers.get(identity, 0)

    # ---- all the time ----------------------------------------------------------------------------------------

    def sweep(self) -> None:
        self.sweeps += 1
        leader = self.cluster.leader()
        for segment in self.cluster.living_segments():
            pages = segment.pool.acked_pages()
            if not pages:
                continue
            self.pages_checked += len(pages)
            if leader is not None:
                self._check_leader(leader, segment, pages)
            for node in self.cluster.masters.values():
                if node.process.alive and node is not leader:
                    self._check_standby(node, segment, pages)
        self._check_cleared()

    def begins_to_lead(self, node: MasterNode, directory: Directory) -> None:
        """Before any segment has told it anything: what it has read is all that it has."""
        if self.cluster.elected() != (node.host, directory.state.term):
            return
        for segment in self.cluster.living_segments():
            self._check_content(node, directory.state, segment, segment.pool.acked_pages())

    def _check_leader(self, node: MasterNode, segment: SegmentNode, pages: list[tuple[Key, int]]) -> None:
        assert node.directory is not None
        self._check_content(node, node.directory.state, segment, pages)
        if self.cluster.undisturbed(segment.host) and self.cluster.undisturbed(node.host):
            self._check_sight(node, segment, pages)

    def _check_content(
        self, node: MasterNode, state: DirectoryState, segment: SegmentNode, pages: list[tuple[Key, int]]
    ) -> None:
        if not pages:
            return
        known = state.segments.get(segment.segment_id)
        if known is None or known.record.endpoint.pool_id != segment.pool.pool_id:
            self.violate(
                "no acknowledged page is lost",
                f"the leader {node.host} does not know {segment.host}, which holds {len(pages)}",
            )
            return
        for (_, fingerprint), revision in pages:
            found = state.index.find(fingerprint)
            if found is None or known.index not in found[0]:
                self.violate(
                    "no acknowledged page is lost",
                    f"the leader {node.host} has lost {fingerprint.hex()} of {segment.host}, durable at {revision}",
                )
                return

    def _check_sight(self, node: MasterNode, segment: SegmentNode, pages: list[tuple[Key, int]]) -> None:
        by_namespace: dict[bytes, list[bytes]] = {}
        for (ns, fingerprint), _ in pages:
            by_namespace.setdefault(ns, []).append(fingerprint)
        for ns, fingerprints in by_namespace.items():
            if node.answers_for(ns) and None in node.on_lookup(ns, fingerprints):
                self.violate(
                    "reads are blind only when stated",
                    f"the leader {node.host} does not find pages of {segment.host}, which is well",
                )

    def _check_standby(self, node: MasterNode, segment: SegmentNode, pages: list[tuple[Key, int]]) -> None:
        applied = node.applied_revision
        if applied is None or node.is_reloading(segment.segment_id):
            return
        due = [(key, revision) for key, revision in pages if revision <= applied]
        for (_, fingerprint), revision in due:
            if node.index.find(fingerprint) is None:
                self.violate(
                    "no standby loses a page",
                    f"the standby {node.host} has applied revision {applied} and lacks {fingerprint.hex()} of "
                    f"{segment.host}, durable at {revision}",
                )
                return

    def _check_cleared(self) -> None:
        """Nobody that lives answers for what was cleared behind a barrier, whether anybody asks or not."""
        for ns in self._cleared:
            for node in self.cluster.masters.values():
                if node.process.alive and node.answers_for(ns):
                    self.violate(
                        "nothing is served after a cleared barrier", f"{node.host} answers for {ns.hex()}"
                    )
            for segment in self.cluster.living_segments():
                if segment.pool.is_supplanted:
                    continue  # nobody tells it of a clear, and no master sends anybody there
                if ns not in segment.pool.retired and any(of == ns for of, _ in segment.pool.pages):
                    self.violate(
                        "nothing is served after a cleared barrier", f"{segment.host} serves {ns.hex()}"
                    )
