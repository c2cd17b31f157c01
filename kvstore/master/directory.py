"""Carries out what the state machine wants: the seam between it and store, streams and clients. Event loop
only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvstore.common.core_tasks import CoreTasks
from kvstore.common.errors import FencedError, KvstoreError, RefusedError, StoreError
from kvstore.common.logs import log_event, log_throttled
from kvstore.master.answers import Answers
from kvstore.master.commit_watch import CommitWatch
from kvstore.master.committer import Committer
from kvstore.master.compaction import Compactor
from kvstore.master.copy_trimmer import CopyTrimmer
from kvstore.master.data_path_probe import DataPathProbes
from kvstore.master.drains import Drains
from kvstore.master.index_sweeper import sweep
from kvstore.master.metadata.store import Fence, MetadataStore, Space
from kvstore.master.metrics import MasterMetrics
from kvstore.master.object_copies import ObjectCopies
from kvstore.master.quota_keeper import QuotaKeeper
from kvstore.master.segment_questions import SegmentQuestions
from kvstore.master.state import effects as ef
from kvstore.master.state import events as ev
from kvstore.master.state.changes import Change, JournalStored
from kvstore.master.state.data_paths import DataPaths
from kvstore.master.state.directory_state import DirectoryState, Recovered, StateLimits
from kvstore.master.state.drain_plan import DrainProgress
from kvstore.master.state.layout import QuotaKind, QuotaRecord
from kvstore.master.state.placement import PlacementPolicy
from kvstore.master.state.placer import Placer
from kvstore.master.store_watch import StoreView, StoreWatch
from kvstore_client._native import DirectoryIndex
from kvstore_client.protocol import NAMESPACE_BYTES, MapRecord, NamespaceReply, Status

logger = logging.getLogger(__name__)

TICK_S = 0.5


@dataclass(frozen=True, slots=True)
class NamespaceView:
    """A current namespace, for people and tools."""

    id: bytes
    epoch: int
    name: str
    identity: bytes
    used_at: float | None = None  # time.monotonic() of when it was last asked for; None: the leader knows


class SegmentSession(Protocol):
    """One Attach stream. Its methods queue and return at once."""

    def accept(self, segment_index: int, durable_seq: int, need_inventory: bool) -> None: ...
    def ack(self, durable_seq: int) -> None: ...
    def request_inventory(self) -> None: ...
    def retire_namespaces(self, namespaces: tuple[bytes, ...], barrier: int) -> None: ...
    def limit_quotas(self, limits: Any) -> None: ...
    def refuse_entries(self, last_seq: int, entries: int, reason: str) -> None: ...
    def close(self, status: Status, reason: str) -> None: ...


class Directory:
    def __init__(
        self,
        store: MetadataStore,
        fence: Fence,
        recovered: Recovered,
        limits: StateLimits,
        policy: PlacementPolicy,
        metrics: MasterMetrics,
        *,
        run_bytes: int,
        copy_bytes_per_s: int = 0,
        on_fenced: Callable[[FencedError], None],
        on_failed: Callable[[KvstoreError], None],
    ) -> None:
        """`copy_bytes_per_s`: see ObjectCopies. `on_fenced`: another master writes. `on_failed`: nothing here can go on."""
        self._store = store
        self._metrics = metrics
        self.state = DirectoryState(time.monotonic(), fence.term, recovered, limits)
        self.committer = Committer(
            store,
            fence,
            on_done=lambda change: self.handle(ev.Committed(change)),
            on_failed=self._commit_failed,
            on_commit=self._count_commit,
            on_stalled=self._commit_stalled,
            on_fenced=on_fenced,
        )
        self._compactor = Compactor(store, self.state, self.committer, self.handle)
        self._store_watch = StoreWatch(store, metrics, lambda: self.committer.backlog_bytes, self._measured)
        self._sessions: dict[int, SegmentSession] = {}
        self._session_count = 0
        self._answers = Answers(self.handle)
        self.questions = SegmentQuestions()
        self.copies = ObjectCopies(self.state, self.questions, metrics, copy_bytes_per_s)
        self._map_changed: asyncio.Future[None] | None = None
        self.data_paths = DataPaths()
        self.drains = Drains(self.state, self.questions, self.copies, self.data_paths)
        self._probes = DataPathProbes(self.state, self.data_paths, metrics)
        self._placer = Placer(self.state, policy, run_bytes, self.data_paths)
        self._quotas = QuotaKeeper(self.state, metrics)
        self._trimmer = CopyTrimmer(self.state, self.questions, metrics)
        self._tasks = CoreTasks(on_failed)
        self._committing = CoreTasks(on_failed)  # ends after the others
        self._commits = CommitWatch()
        self._stopping = False

    def start(self) -> None:
        self.committer.start(self._committing)
        self._tasks.start(self._tick_forever(), "directory-tick")
        self._tasks.start_job(sweep(self.state.index), "directory-sweep")  # what a follower left over
        self._tasks.keep(self._probes.run, "directory-data-path-probes")
        self._tasks.keep(self.drains.run, "directory-drains")
        self._tasks.keep(self._trimmer.run, "directory-copy-trimmer")
        self._tasks.keep(self._store_watch.run, "directory-store-watch")
        self._tasks.keep(self._store_watch.keep_up, "directory-store-upkeep")

    async def stop(self) -> None:
        """Ends the background work, commits what was accepted, and answers who still waits. What was readable stays so."""
        self._stopping = True
        for session in list(self._sessions.values()):
            session.close(Status.NOT_LEADER, "this master leads no more")
        await self._tasks.stop()
        await self.committer.stop()
        await self._committing.stop()
        self._answers.refuse_all(RefusedError(Status.NOT_LEADER, "this master leads no more"))
        self._wake_map_watchers()

    @property
    def store_view(self) -> StoreView:
        return self._store_watch.view

    # ---- reads (roles.Backend) -----------------------------------------------------------------------------

    @property
    def cluster_id(self) -> bytes:
        return self.state.cluster_id

    @property
    def map_epoch(self) -> int:
        return self.state.map_epoch

    @property
    def index(self) -> DirectoryIndex:
        return self.state.index

    def segment_map(self) -> list[MapRecord]:
        return self.state.segment_map()

    def used_bytes(self) -> dict[int, int]:
        return {segment.index: segment.used_bytes for segment in self.state.segments}

    def is_current(self, ns: bytes) -> bool:
        return self.state.namespaces.is_current(ns)

    @property
    def namespace_count(self) -> int:
        return len(self.state.namespaces)

    def namespaces(self) -> Iterable[NamespaceView]:
        for each in self.state.namespaces:
            yield NamespaceView(each.id, each.epoch, each.name, each.identity, each.used_at)

    @property
    def commit_stalled_s(self) -> float:
        """How long work has waited for the metadata store without any of it being done."""
        return self._commits.stalled_s(time.monotonic())

    # ---- events in -----------------------------------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        effects = self.state.handle(time.monotonic(), event)
        if isinstance(event, ev.Committed) and isinstance(event.change, JournalStored):
            self._placer.journaled(event.change.segment_id)
        for effect in effects:
            self._perform(effect)

    def open_session(self, session: SegmentSession) -> int:
        """The number under which the session's events come and its effects go."""
        self._session_count += 1
        self._sessions[self._session_count] = session
        return self._session_count

    def end_session(self, number: int) -> None:
        self._sessions.pop(number, None)
        self.questions.left(number)
        if not self._stopping:
            self.handle(ev.StreamLost(number))

    def heartbeat(self, event: ev.HeartbeatReceived) -> bool:
        """Whether the segment is known; if not, it must attach."""
        self.handle(event)
        self._placer.reported(time.monotonic(), event)
        return self.state.membership.knows(event.segment_id, event.pool_id)

    async def open_namespace(self, identity: bytes, name: str) -> NamespaceReply:
        """Durable on return. Raises RefusedError."""
        return await self._answers.ask_namespace(lambda request: ev.NamespaceOpened(request, identity, name))

    async def bump_namespace(self, ns: bytes) -> NamespaceReply:
        return await self._answers.ask_namespace(lambda request: ev.NamespaceBumped(request, ns))

    async def forget_namespace(self, ns: bytes) -> None:
        """Durable on return. Raises RefusedError: MISS when no namespace has this id."""
        await self._answers.ask(lambda request: ev.NamespaceForgotten(request, ns))

    def used(self, ns: bytes) -> None:
        self.state.namespaces.used(time.monotonic(), ns)

    def quota_limits(self, segment_index: int) -> Any:
        """What a segment has to keep to now (pb.LimitQuotas)."""
        return self._quotas.limits_of(segment_index)

    def quotas(self) -> Iterable[QuotaRecord]:
        return self.state.quotas.records()

    async def set_quota(self, kind: QuotaKind, subject: bytes, limit_bytes: int | None) -> None:
        """`limit_bytes`: None: removes it. Durable on return, and told to the segments. Raises RefusedError: MISS when there is none
        to remove."""
        await self._answers.ask(lambda request: ev.QuotaRequested(request, kind, subject, limit_bytes))

    async def set_draining(self, segment_id: bytes, draining: bool) -> None:
        """Durable on return. Raises RefusedError: MISS when there is no such segment."""
        await self._answers.ask(lambda request: ev.DrainRequested(request, segment_id, draining))

    def drain_of_session(self, session: int) -> DrainProgress | None:
        """The segment of this session wants to be drained, and to know how far that is. None: it is none of ours."""
        segment = self.state.segments.of_session(session)
        if segment is None:
            return None
        if not segment.record.draining and segment.drain_request is None:
            self._tasks.start_job(self._drain_as_wished(segment.segment_id), "directory-drain-wish")
        return self.drains.progress(segment.segment_id) or DrainProgress()

    async def _drain_as_wished(self, segment_id: bytes) -> None:
        with contextlib.suppress(RefusedError):  # it asks again
            await self.set_draining(segment_id, True)

    async def map_changed(self) -> None:
        """Until the segment map has a newer epoch than now."""
        if self._map_changed is None:
            self._map_changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._map_changed)

    def place(self, body: bytes, preferred: int, avoided: Sequence[int] = (), replicas: int = 1) -> bytes:
        """The fields of a PLACE reply. Raises WireError of the native module."""
        if avoided:
            self._probes.avoided(avoided)
        refused = self._quotas.refuses(body[:NAMESPACE_BYTES])
        beside, short = self._placer.copies_beside, self._placer.copies_short
        fields = self._placer.place(time.monotonic(), body, preferred, replicas, refused=refused)
        if replicas > 1:
            self._trimmer.wanted(body[:NAMESPACE_BYTES], replicas)
            self._metrics.copies_beside.inc(self._placer.copies_beside - beside)
            self._metrics.copies_short.inc(self._placer.copies_short - short)
        return fields

    # ---- effects out ---------------------------------------------------------------------------------------

    def _perform(self, effect: ef.Effect) -> None:
        match effect:
            case ef.Commit():
                self.committer.submit(effect.ops, effect.change)
            case ef.Report():
                self._metrics.events.labels(effect.event).inc()
                if effect.throttle_key is None:
                    log_event(logger, effect.level, effect.event, **effect.fields)
                else:
                    log_throttled(logger, effect.level, effect.event, effect.throttle_key, **effect.fields)
            case ef.BroadcastMap():
                self._wake_map_watchers()
            case ef.NamespaceReady():
                self._quotas.opened(time.monotonic(), effect.ns, self._sessions.items())
                self._answers.answer(effect.request, NamespaceReply(effect.ns, effect.epoch))
            case ef.QuotaReady():
                self._quotas.look(time.monotonic(), self._sessions.items(), at_once=True)
                self._answers.answer(effect.request, None)
            case ef.DrainReady() | ef.NamespaceGone():
                self._answers.answer(effect.request, None)
            case ef.RequestRefused():
                self._answers.refuse(effect.request, RefusedError(effect.status, effect.text))
            case ef.RetireNamespaces():
                for session in list(self._sessions.values()):
                    session.retire_namespaces(effect.namespaces, effect.barrier)
            case ef.SweepIndex():
                self._tasks.start_job(sweep(self.state.index), "directory-sweep")
            case ef.CompactionStepStored():
                self._compactor.step_stored(effect.segment_id, effect.run)
            case ef.MeasureSpace():
                self._store_watch.measure_soon()
            case ef.CompactLog():
                self._tasks.start_job(self._compact(effect), "directory-compact")
            case _:
                if (session_of := self._sessions.get(effect.session)) is not None:
                    self._tell(session_of, effect)
                    if isinstance(effect, ef.AcceptSegment):
                        self._quotas.joined(effect.session, effect.segment_index)

    @staticmethod
    def _tell(session: SegmentSession, effect: ef.SessionEffect) -> None:
        match effect:
            case ef.AckJournal():
                session.ack(effect.durable_seq)
            case ef.AcceptSegment():
                session.accept(effect.segment_index, effect.durable_seq, effect.need_inventory)
            case ef.RequestInventory():
                session.request_inventory()
            case ef.RefuseEntries():
                session.refuse_entries(effect.last_seq, effect.entries, effect.reason)
            case ef.CloseSession():
                session.close(effect.status, effect.reason)

    def _wake_map_watchers(self) -> None:
        if self._map_changed is not None:
            self._map_changed.set_result(None)
            self._map_changed = None

    def _commit_failed(self, change: Change, error: str) -> None:
        self._metrics.commit_failures.inc()
        self.store_view.commit_error = error
        self.handle(ev.CommitFailed(change, error))

    def _commit_stalled(self, error: str, stalled_s: float) -> None:
        self._metrics.commit_failures.inc()
        self._metrics.backlog_bytes.set(self.committer.backlog_bytes)
        self.store_view.commit_error = error
        self.handle(ev.CommitStalled(error, stalled_s))

    def _count_commit(self, seconds: float, submissions: int) -> None:
        self._metrics.commit_seconds.observe(seconds)
        self._metrics.commit_submissions.inc(submissions)
        self._commits.committed()
        self._metrics.backlog_bytes.set(self.committer.backlog_bytes)
        self.store_view.commit_error = ""

    def _measured(self, space: Space) -> None:
        rooms = (space.journal_room_bytes, space.upkeep_room_bytes)
        self.handle(ev.SpaceMeasured(space.level, space.text, *rooms))

    # ---- tasks ---------------------------------------------------------------------------------------------

    async def _tick_forever(self) -> None:
        due = time.monotonic()
        while True:
            due = max(due + TICK_S, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            now = time.monotonic()
            # While this loop did not run nobody was heard: that is no silence of theirs.
            self.handle(ev.Tick(late_s=max(0.0, now - due)))
            self._quotas.look(now, self._sessions.items())
            self._commits.looked(now, self.committer.backlog_bytes)
            self._metrics.commit_stalled.set(self._commits.stalled_s(now))

    async def _compact(self, order: ef.CompactLog) -> None:
        try:
            ended = await self._compactor.compact(order)
        except Exception as error:
            # Upkeep: the log only stays as long as it is, and it is tried again later. A bug shows its traceback.
            log_event(
                logger,
                logging.WARNING,
                "compaction_failed",
                segment_id=order.segment_id,
                error=str(error) or type(error).__name__,
                exc_info=None if isinstance(error, StoreError) else error,
            )
            self.handle(ev.CompactionFailed(order.segment_id, order.run))
            return
        self.handle(ended)
