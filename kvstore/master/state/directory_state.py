"""The master's state machine: events in, effects out. It does no IO and has no clock of its own.

`DirectoryState.handle(now, event)` changes the state and returns what is to be done, in order. The index is
part of the state: an entry is applied to it only when the record that holds it is durable. The rest of the
master reads the state between events and never changes it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from kvstore.master.state import changes as ch
from kvstore.master.state import events as ev
from kvstore.master.state.barriers import Barriers
from kvstore.master.state.draining import Draining
from kvstore.master.state.effects import BroadcastMap, Effect, Report
from kvstore.master.state.layout import ClusterRecord, NamespaceRecord, QuotaRecord, SegmentRecord
from kvstore.master.state.log_compaction import LogLimits
from kvstore.master.state.membership import Membership, MembershipLimits
from kvstore.master.state.namespaces import Namespaces
from kvstore.master.state.quotas import Quotas
from kvstore.master.state.segment_indexes import SegmentIndexes
from kvstore.master.state.segment_logs import SegmentLogs
from kvstore.master.state.segment_table import SegmentTable
from kvstore_client._native import DirectoryIndex
from kvstore_client.protocol import MapRecord, SegmentState

# How long requests wait for a store that fails before they are refused; clients give a call a second.
ANSWER_AFTER_S = 0.5


@dataclass(frozen=True)
class StateLimits:
    membership: MembershipLimits = field(default_factory=MembershipLimits)
    log: LogLimits = field(default_factory=LogLimits)
    namespaces_max: int = 65_536
    namespace_unused_s: float = 0.0  # 0: namespaces are kept whether anybody uses them or not
    recovery_s: float = 10.0


@dataclass(frozen=True)
class RecoveredSegment:
    """A segment as the store had it; its entries are in the index already, under `index`."""

    index: int
    segment_id: bytes
    record: SegmentRecord
    durable_seq: int
    logged_entries: int
    next_generation: int
    damaged: bool


@dataclass(frozen=True)
class Recovered:
    """Everything the store had."""

    cluster: ClusterRecord
    index: DirectoryIndex
    segments: tuple[RecoveredSegment, ...] = ()
    namespaces: tuple[NamespaceRecord, ...] = ()
    quotas: tuple[QuotaRecord, ...] = ()


class DirectoryState:
    """`term` is that of the writer's fence: map epochs of a later master are always higher."""

    def __init__(self, now: float, term: int, recovered: Recovered, limits: StateLimits) -> None:
        self.term = term
        self.index = recovered.index
        self.map_epoch = term << 32 | 1
        self.segments = SegmentTable(SegmentIndexes(lambda index: self.index.segment_usage(index)[0] > 0))
        self.barriers = Barriers(self.segments)
        self.namespaces = Namespaces(
            now, recovered.cluster, limits.namespaces_max, self.barriers, limits.namespace_unused_s
        )
        self.namespaces.recover(recovered.namespaces)
        self.quotas = Quotas(self.namespaces)
        self.quotas.recover(recovered.quotas)
        self.membership = Membership(self.segments, self.index, limits.membership)
        self.draining = Draining(self.segments, self.membership)
        self.logs = SegmentLogs(self.segments, self.index, limits.log)
        # Counts whatever may change the map or where pages are placed.
        self.membership_version = 0
        self._stalled = False
        for known in recovered.segments:
            self._recover(now, known, limits.recovery_s)
        self.segments.indexes.recover({known.index for known in recovered.segments})
        self._map_shape = self._shape()

    def _recover(self, now: float, known: RecoveredSegment, recovery_s: float) -> None:
        segment = self.segments.create(known.segment_id, known.record)
        assert segment.index == known.index
        self.index.set_serving(known.index, True)  # whatever a follower thought of it
        self.index.set_vouched(known.index, False)  # but nobody has heard it yet
        segment.durable_seq = segment.accepted_seq = known.durable_seq
        segment.logged_entries = known.logged_entries
        segment.next_generation = known.next_generation
        segment.damaged = known.damaged
        segment.recorded = True
        segment.durable_snapshot = known.record.snapshot
        segment.object_count, segment.used_bytes = self.index.segment_usage(known.index)
        # Served at once, for it is most likely alive; suspect soon, if it does not come.
        segment.state = SegmentState.DRAINING if known.record.draining else SegmentState.LIVE
        segment.recovering_until = now + recovery_s
        segment.heard_at = now
        segment.claimed_until = now + self.membership.limits.streamless_timeout_s
        segment.fresh_since = float("-inf")

    @property
    def cluster(self) -> ClusterRecord:
        return self.namespaces.cluster

    @property
    def cluster_id(self) -> bytes:
        return self.cluster.cluster_id

    def segment_map(self) -> list[MapRecord]:
        return [segment.map_record() for segment in self.segments]

    def handle(self, now: float, event: ev.Event) -> list[Effect]:
        effects = self._handle(now, event)
        if any(isinstance(effect, BroadcastMap) for effect in effects):
            effects = [effect for effect in effects if not isinstance(effect, BroadcastMap)]
            self.membership_version += 1
            shape = self._shape()
            # However many reasons there were, it is one new map, and none where it says what the last one said.
            if shape != self._map_shape:
                self._map_shape = shape
                self.map_epoch += 1
                effects.append(BroadcastMap())
        return effects

    def _shape(self) -> list[tuple[SegmentState, bytes, SegmentRecord]]:
        """What clients go by in the map: everything but how full the segments are."""
        return [(s.state, s.segment_id, s.record) for s in self.segments]

    def _handle(self, now: float, event: ev.Event) -> list[Effect]:
        match event:
            case ev.JournalReceived():
                return self._heard(now, event.session) + self.logs.journal(event)
            case ev.Committed():
                return self._committed(now, event.change)
            case ev.HeartbeatReceived():
                return self.membership.heartbeat(now, event)
            case ev.Tick():
                expired = self.namespaces.expire(now, lambda ns: self.index.usage_of_namespace(ns)[0] == 0)
                return expired + self.membership.tick(now, event.late_s)
            case ev.InventoryReceived():
                return self._heard(now, event.session) + self.logs.inventory(event)
            case ev.SegmentAttached():
                return self.membership.attach(now, event)
            case ev.StreamLost():
                return self.membership.stream_lost(now, event)
            case ev.SegmentLeaving():
                return self.membership.leaving(now, event)
            case ev.SegmentAway():
                return self.membership.away(now, event)
            case ev.NamespaceOpened():
                return self.namespaces.open(now, event)
            case ev.NamespaceBumped():
                return self.namespaces.bump(event)
            case ev.NamespaceForgotten():
                return self.namespaces.forget(event)
            case ev.QuotaRequested():
                return self.quotas.request(event)
            case ev.NamespacesRetired():
                self.barriers.confirmed(event)
                return []
            case ev.DrainRequested():
                return self.draining.request(now, event)
            case ev.LogRewritten():
                return self.logs.log_rewritten(event)
            case ev.CompactionEnded():
                return self.logs.compaction.ended(now, event)
            case ev.CompactionFailed():
                return self.logs.compaction.failed(now, event)
            case ev.SpaceMeasured():
                return self.logs.space_measured(now, event)
            case ev.CommitStalled():
                return self._commit_stalled(event)
            case ev.CommitFailed():
                return self._commit_failed(now, event)

    def _heard(self, now: float, session: int) -> list[Effect]:
        segment = self.segments.of_session(session)
        return self.membership.heard(now, segment) if segment is not None else []

    def _commit_stalled(self, event: ev.CommitStalled) -> list[Effect]:
        effects: list[Effect] = []
        if not self._stalled:
            self._stalled = True
            effects.append(Report("commits_stalled", {"error": event.error}, logging.ERROR))
        if event.stalled_s >= ANSWER_AFTER_S:
            # What waits is stored once the store can; whoever asked for it has waited long enough.
            effects += self.membership.commit_stalled(event.error)
            effects += self.draining.commit_stalled(event.error)
            effects += self.namespaces.commit_stalled(event.error)
            effects += self.quotas.commit_stalled(event.error)
        return effects

    def _committed(self, now: float, change: ch.Change) -> list[Effect]:
        resumed: list[Effect] = []
        if self._stalled:
            self._stalled = False
            resumed.append(Report("commits_resumed", {}, logging.INFO))
        return resumed + self._stored(now, change)

    def _stored(self, now: float, change: ch.Change) -> list[Effect]:
        match change:
            case ch.JournalStored():
                return self.logs.journal_stored(now, change)
            case ch.InventoryChunkStored():
                return self.logs.inventory_chunk_stored(change)
            case ch.InventoryStored():
                return self.logs.inventory_stored(change)
            case ch.LogRewriteStored():
                return self.logs.compaction.stored(change, self.logs.current(change))
            case ch.NamespaceStored():
                return self.namespaces.stored(change)
            case ch.NamespaceRemoved():
                return self.namespaces.removed(change)
            case ch.QuotaStored():
                return self.quotas.stored(change)
            case ch.SegmentRegistered():
                return self.membership.registered(now, change)
            case ch.SegmentDropped():
                return self.membership.dropped(change)
            case ch.DrainStored():
                return self.draining.stored(change)

    def _commit_failed(self, now: float, event: ev.CommitFailed) -> list[Effect]:
        change = event.change
        failed: list[Effect] = [
            Report("commit_failed", {"change": type(change).__name__, "error": event.error}, logging.ERROR)
        ]
        match change:
            case ch.NamespaceStored():
                return failed + self.namespaces.store_failed(change, event.error)
            case ch.NamespaceRemoved():
                return failed + self.namespaces.remove_failed(change, event.error)
            case ch.QuotaStored():
                return failed + self.quotas.store_failed(change, event.error)
            case ch.SegmentRegistered():
                return failed + self.membership.registration_failed(change)
            case ch.SegmentDropped():
                return failed + self.membership.drop_failed(now, change)
            case ch.DrainStored():
                return failed + self.draining.store_failed(now, change, event.error)
            case _:
                return failed + self.logs.store_failed(now, change)
