"""Who is in the cluster: attaching, going silent, leaving. Part of the state machine; does no IO.

    (attach) -> LIVE <-> SUSPECT -> GONE        DRAINING stands for LIVE while a segment is to be emptied
    (master restart) -> LIVE, "recovering" until it attaches or the recovery time is over -> SUSPECT

A segment that is not heard for the heartbeat timeout is SUSPECT: its entries are kept and not served. So is one that says that
it is away, at once. Without its stream it is as soon as a heartbeat is overdue, and takes no new pages meanwhile; that a stream
breaks says nothing of the memory as long as heartbeats come. Heard again with the same pool its entries count again. After the
grace period it is GONE, and its entries leave the directory for good.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from kvstore.common.reachability import address_doubt
from kvstore.master.metadata.store import Delete, Op, Put
from kvstore.master.state import layout
from kvstore.master.state.changes import Registration, SegmentDropped, SegmentRegistered
from kvstore.master.state.effects import (
    AcceptSegment,
    BroadcastMap,
    CloseSession,
    Commit,
    Effect,
    Report,
    SweepIndex,
)
from kvstore.master.state.endpoint import Endpoint
from kvstore.master.state.events import (
    HeartbeatReceived,
    SegmentAttached,
    SegmentAway,
    SegmentLeaving,
    StreamLost,
)
from kvstore.master.state.layout import SegmentRecord
from kvstore.master.state.segment_table import Segment, SegmentTable
from kvstore_client._native import DirectoryIndex
from kvstore_client.address import Address
from kvstore_client.protocol import SegmentState, Status


@dataclass(frozen=True)
class MembershipLimits:
    grace_s: float = 600.0
    heartbeat_timeout_s: float = 10.0
    # The same for a segment whose stream has broken: two heartbeats and a half.
    streamless_timeout_s: float = 2.5
    # So long what it holds counts as there when new objects are placed, since it was last heard.
    evidence_s: float = 2.0
    segments_max: int = 4096


class Membership:
    def __init__(self, table: SegmentTable, index: DirectoryIndex, limits: MembershipLimits) -> None:
        self._table = table
        self._index = index
        self.limits = limits

    # ---- coming --------------------------------------------------------------------------------------------

    def attach(self, now: float, event: SegmentAttached) -> list[Effect]:
        said = event.registration
        segment = self._table.get(said.endpoint.segment_id)
        effects: list[Effect] = []
        if segment is None and len(self._table) >= self.limits.segments_max:
            reason = f"the cluster has its most of {self.limits.segments_max} segments"
            return [CloseSession(event.session, Status.UNAVAILABLE, reason)]
        if segment is not None and self._is_anothers(now, segment, said):
            return self._refuse_newcomer(now, event.session, segment, said)
        if segment is not None and segment.session is not None:
            effects.append(CloseSession(segment.session, Status.UNAVAILABLE, "another stream took over"))
            effects.append(Report("segment_superseded", {"segment_id": said.endpoint.segment_id}))
            self._table.release(segment)

        if (
            segment is None
            or segment.record.endpoint.pool_id != said.endpoint.pool_id
            or segment.state is SegmentState.GONE
        ):
            return effects + self._start_anew(now, event.session, segment, said)
        self._table.bind(segment, event.session)
        segment.heard_at = segment.alive_at = now
        segment.away = False
        segment.said = said
        record = replace(segment.record, endpoint=said.endpoint)
        if segment.recorded and record == segment.record:
            return effects + self._admit(now, segment, said)
        if segment.registrations_pending and record == segment.record:
            return effects  # of an earlier stream, and as good for this one
        segment.record, segment.recorded = record, False
        return [*effects, self._register(segment, fresh=False)]

    def _is_anothers(self, now: float, segment: Segment, said: Registration) -> bool:
        """Whether the id is that of a segment which is alive, and not the one that comes: its data directory was copied. One that may
        still speak up counts as alive where the other comes from elsewhere; on its own host it is most likely the same, restarted."""
        holder = segment.record.endpoint
        if holder.pool_id == said.endpoint.pool_id or segment.state is SegmentState.GONE:
            return False
        if now - segment.alive_at < self.limits.streamless_timeout_s:
            return True
        return now < segment.claimed_until and holder.host != said.endpoint.host

    @staticmethod
    def _refuse_newcomer(now: float, session: int, segment: Segment, said: Registration) -> list[Effect]:
        holder, newcomer = _where(segment.record.endpoint, segment.said), _where(said.endpoint, said)
        segment.challenger, segment.challenged_at = newcomer, now
        heard = (
            "may be alive" if now < segment.claimed_until else f"was heard {now - segment.alive_at:.1f} s ago"
        )
        reason = (
            f"segment id {segment.segment_id.hex()} is that of the segment at {holder}, which {heard}; the one at {newcomer} has it too, as from a copied data directory: give it a "
            "--data-dir of its own, or delete segment_id in it"
        )
        told = {"segment_id": segment.segment_id, "holder": holder, "newcomer": newcomer}
        return [
            CloseSession(session, Status.CONFLICT, reason),
            Report("segment_id_taken", told, logging.ERROR, throttle_key=newcomer),
        ]

    def _start_anew(
        self,
        now: float,
        session: int,
        old: Segment | None,
        said: Registration,
    ) -> list[Effect]:
        index = self._table.indexes.take()
        if index is None:
            reason = f"the directory has given out all its {layout.SEGMENT_INDEX_MAX} segment indexes"
            return [CloseSession(session, Status.UNAVAILABLE, reason)]
        effects: list[Effect] = []
        draining = False
        if old is not None:
            self._index.set_serving(old.index, False)
            if not old.removed:  # then they are going already
                self._index.drop_segment(old.index)
                effects.append(SweepIndex())
            effects.append(BroadcastMap())
            # New memory of the same segment is as little to be filled; one that said goodbye begins anew.
            draining = old.record.draining and old.state is not SegmentState.GONE
        record = SegmentRecord(index, said.endpoint, draining)
        segment = self._table.create(said.endpoint.segment_id, record)
        segment.said = said
        segment.heard_at = segment.alive_at = segment.fresh_since = segment.suspect_since = now
        self._index.set_serving(segment.index, False)  # until the registration is durable
        self._index.set_vouched(segment.index, False)
        self._table.bind(segment, session)
        # Whatever the old pool (or a segment whose record was lost) left behind goes in the same commit.
        return [*effects, self._register(segment, fresh=True)]

    def _register(self, segment: Segment, *, fresh: bool) -> Commit:
        segment.registrations_pending += 1
        put = Put(layout.segment_key(segment.segment_id), segment.record.encode())
        ops: tuple[Op, ...] = (layout.whole_log(segment.segment_id), put) if fresh else (put,)
        return Commit(ops, SegmentRegistered(segment.segment_id, segment.log, fresh))

    def registered(self, now: float, change: SegmentRegistered) -> list[Effect]:
        """Admits the stream of now, if what it said is what is durable."""
        segment = self._current(change.segment_id, change.log)
        if segment is None:
            return []
        # The record lies where those of its earlier memory lay.
        for index in segment.replaces:
            self._table.indexes.record_removed(index)
        segment.replaces = ()
        segment.registrations_pending -= 1
        if segment.registrations_pending:
            return []  # a later stream said something else
        segment.recorded = True
        if segment.session is None or segment.registered or segment.said is None:
            return []
        return self._admit(now, segment, segment.said)

    def registration_failed(self, change: SegmentRegistered) -> list[Effect]:
        segment = self._current(change.segment_id, change.log)
        if segment is None:
            return []
        segment.registrations_pending -= 1
        segment.recorded = False
        session = segment.session
        if change.fresh:
            self._table.forget(segment.segment_id)  # it starts anew, old log and all
        if session is None:
            return []
        return [CloseSession(session, Status.UNAVAILABLE, "the directory could not be written: attach again")]

    def _admit(self, now: float, segment: Segment, said: Registration) -> list[Effect]:
        assert segment.session is not None
        segment.registered = True
        segment.recovering_until = None
        need_inventory = (
            segment.damaged
            or said.last_seq < segment.durable_seq  # it knows less than it once told us
            or said.oldest_kept_seq > segment.durable_seq + 1  # it can't send what is missing
        )
        segment.awaiting_inventory = need_inventory
        segment.stream_seq = segment.durable_seq
        doubt = address_doubt(segment.record.endpoint.host, said.attached_from)
        return [
            AcceptSegment(segment.session, segment.index, segment.durable_seq, need_inventory),
            *self.revive(now, segment),
            Report(
                "segment_attached",
                {
                    "segment_id": segment.segment_id,
                    "index": segment.index,
                    "host": segment.record.endpoint.host,
                    "tcp_port": segment.record.endpoint.tcp_port,
                    "durable_seq": segment.durable_seq,
                    "need_inventory": need_inventory,
                    "attached_from": said.attached_from,
                },
                logging.INFO,
            ),
            *(
                [Report("segment_unreachable", {"segment_id": segment.segment_id, "why": doubt})]
                if doubt
                else []
            ),
        ]

    def revive(self, now: float, segment: Segment) -> list[Effect]:
        """It is served, and takes new pages unless it is to be drained."""
        state = SegmentState.DRAINING if segment.record.draining else SegmentState.LIVE
        self._index.set_serving(segment.index, True)
        segment.state = state
        self._judge(now, segment)
        return [BroadcastMap()]

    def _judge(self, now: float, segment: Segment) -> None:
        """Whether there is evidence that what it holds is there: a page that is said to be stored must not lie on a dead segment."""
        vouched = segment.serving and segment.registered and now - segment.alive_at <= self.limits.evidence_s
        if segment.vouched != vouched:
            segment.vouched = vouched
            self._index.set_vouched(segment.index, vouched)

    # ---- going silent --------------------------------------------------------------------------------------

    def heard(self, now: float, segment: Segment) -> list[Effect]:
        """A message came: a segment that was silent counts again, if this is the memory of its durable record. What one that has
        gone away had sent before is no sign of it."""
        if segment.away:
            return []
        segment.heard_at = segment.alive_at = now
        self._judge(now, segment)
        if segment.recorded and segment.state is SegmentState.SUSPECT:
            return [
                *self.revive(now, segment),
                Report("segment_heard_again", {"segment_id": segment.segment_id}),
            ]
        return []

    def heartbeat(self, now: float, event: HeartbeatReceived) -> list[Effect]:
        segment = self._table.get(event.segment_id)
        if (
            segment is None
            or segment.record.endpoint.pool_id != event.pool_id
            or segment.state is SegmentState.GONE
        ):
            return []
        segment.used_bytes = event.used_bytes
        segment.object_count = event.object_count
        segment.pinned_bytes = event.pinned_bytes
        segment.quarantined_slots = event.quarantined_slots
        segment.digest_mismatches = event.digest_mismatches
        segment.limits = event.limits
        if 0 < segment.evicted_objects < event.evicted_objects:
            segment.evicted_at = now
        segment.evicted_objects = event.evicted_objects
        segment.recovering_until = None  # it is alive, whether it has attached yet or not
        return self.heard(now, segment)

    def knows(self, segment_id: bytes, pool_id: bytes) -> bool:
        """Whether the segment has a stream here; if not, it must attach (again)."""
        segment = self._table.get(segment_id)
        return (
            segment is not None and segment.record.endpoint.pool_id == pool_id and segment.session is not None
        )

    def stream_lost(self, now: float, event: StreamLost) -> list[Effect]:
        segment = self._table.of_session(event.session)
        if segment is None:
            return []
        self._table.release(segment)
        segment.claimed_until = now + self.limits.streamless_timeout_s
        self._judge(now, segment)
        if not segment.serving:
            return []
        return [BroadcastMap(), Report("segment_stream_lost", {"segment_id": segment.segment_id})]

    def _suspect(self, now: float, segment: Segment, why: str) -> list[Effect]:
        if segment.state is SegmentState.SUSPECT:
            return []
        segment.state = SegmentState.SUSPECT
        segment.suspect_since = now
        segment.recovering_until = None
        self._index.set_serving(segment.index, False)
        self._judge(now, segment)
        return [BroadcastMap(), Report("segment_suspect", {"segment_id": segment.segment_id, "why": why})]

    # ---- going ---------------------------------------------------------------------------------------------

    def away(self, now: float, event: SegmentAway) -> list[Effect]:
        """As one that is silent, at once: its pages are where they were, and nobody serves them until it attaches again. Of one that
        was drained nobody waits for that."""
        segment = self._table.of_session(event.session)
        if segment is None or segment.state is SegmentState.GONE:
            return []
        if segment.record.draining:
            return self._drop(now, segment, f"it was drained, and left: {event.reason}")
        segment.away = True
        return self._suspect(now, segment, f"it is away, and keeps its pool: {event.reason}")

    def leaving(self, now: float, event: SegmentLeaving) -> list[Effect]:
        segment = self._table.of_session(event.session)
        if segment is None:
            return []
        return self._drop(now, segment, f"it left: {event.reason}")

    def _drop(self, now: float, segment: Segment, why: str) -> list[Effect]:
        segment.state = SegmentState.GONE
        segment.suspect_since = now
        segment.compaction = None
        segment.inventory = None
        self._index.set_serving(segment.index, False)
        ops = (layout.whole_log(segment.segment_id), Delete(layout.segment_key(segment.segment_id)))
        return [
            Commit(ops, SegmentDropped(segment.segment_id, segment.log)),
            BroadcastMap(),
            Report("segment_gone", {"segment_id": segment.segment_id, "why": why}),
        ]

    def dropped(self, change: SegmentDropped) -> list[Effect]:
        segment = self._current(change.segment_id, change.log)
        if segment is None:
            return []
        segment.removed = True
        for index in (*segment.replaces, segment.index):
            self._table.indexes.record_removed(index)
        segment.replaces = ()
        self._index.drop_segment(segment.index)
        return [SweepIndex()]

    def drop_failed(self, now: float, change: SegmentDropped) -> list[Effect]:
        """Back to suspect, so that the drop is tried again after another grace period at most."""
        segment = self._current(change.segment_id, change.log)
        if segment is not None and segment.state is SegmentState.GONE:
            segment.state = SegmentState.SUSPECT
            segment.suspect_since = now
        return []

    def commit_stalled(self, error: str) -> list[Effect]:
        """Answers those who wait for a registration to be stored; that goes on."""
        effects: list[Effect] = []
        text = f"the metadata store fails, and it is tried again: {error}"
        for segment in self._table:
            if segment.session is not None and not segment.registered:
                effects.append(CloseSession(segment.session, Status.UNAVAILABLE, text))
        return effects

    # ---- time ----------------------------------------------------------------------------------------------

    def tick(self, now: float, late_s: float) -> list[Effect]:
        """`late_s` of the time since the last one this master heard nobody: that is no silence of theirs."""
        effects: list[Effect] = []
        for segment in list(self._table):
            # Whoever was heard after the pause, before this tick, was heard then and not later.
            segment.heard_at = min(now, segment.heard_at + late_s)
            segment.alive_at = min(now, segment.alive_at + late_s)
            if segment.recovering_until is not None:
                segment.recovering_until += late_s
            self._judge(now, segment)
            if segment.state is SegmentState.GONE:
                if segment.removed and now - segment.suspect_since >= self.limits.grace_s:
                    self._table.forget(segment.segment_id)
                    effects.append(BroadcastMap())
            elif segment.state is SegmentState.SUSPECT:
                if now - segment.suspect_since >= self.limits.grace_s:
                    effects += self._expire(now, segment)
            elif segment.recovering_until is not None:
                if now >= segment.recovering_until:
                    effects += self._suspect(now, segment, "it did not attach after the master's restart")
            elif segment.session is None:
                if now - segment.heard_at >= self.limits.streamless_timeout_s:
                    effects += self._suspect(now, segment, "its stream broke and its heartbeats stopped")
            elif now - segment.heard_at >= self.limits.heartbeat_timeout_s:
                effects += self._suspect(now, segment, "its heartbeats stopped")
        return effects

    def _expire(self, now: float, segment: Segment) -> list[Effect]:
        effects: list[Effect] = []
        if segment.session is not None:
            effects.append(CloseSession(segment.session, Status.TIMEOUT, "silent for the whole grace period"))
            self._table.release(segment)
        return effects + self._drop(now, segment, "it was silent for the whole grace period")

    def _current(self, segment_id: bytes, log: int) -> Segment | None:
        segment = self._table.get(segment_id)
        return segment if segment is not None and segment.log == log else None


def _where(endpoint: Endpoint, said: Registration | None) -> str:
    address = str(Address(endpoint.host, endpoint.tcp_port))
    came_from = said.attached_from if said is not None else ""
    return f"{address} (attached from {came_from})" if came_from and came_from != endpoint.host else address
