"""A master's process: the product's store, election, follower, directory and committer; its ports are the simulated network's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvstore.common.errors import FencedError, KvstoreError, RefusedError
from kvstore.master.clear_watch import ClearWatch
from kvstore.master.directory import Directory
from kvstore.master.ha.attendance_keeper import AttendanceKeeper
from kvstore.master.ha.replica import Replica
from kvstore.master.metadata.etcd import EtcdStore
from kvstore.master.metadata.etcd_options import EtcdOptions
from kvstore.master.metadata.store import Fence
from kvstore.master.metrics import MasterMetrics
from kvstore.master.roles import Backend, Roles, Standby
from kvstore.master.state import events as ev
from kvstore.master.state.changes import Registration
from kvstore.master.state.directory_state import Recovered, StateLimits
from kvstore.master.state.placement import POLICIES
from kvstore_client._native import DirectoryIndex
from kvstore_client.protocol import MapRecord, NamespaceReply, SegmentState, Status
from simulation.etcd_transport import etcd_store
from simulation.event_log import EventLog
from simulation.network import ConnectionEnded, End, Network, Unreachable
from simulation.process import Process, current_process
from simulation.segment_ids import SegmentIds
from support.wire.directory import LookupReply, LookupRequest, PlaceReply, PlaceRequest

HEARTBEAT_S = 1.0
RUN_BYTES = 1 << 12
MIRROR_PERIOD_S = 0.5
START_RETRY_S = 1.0
STANDBY_READS_S = 6.0  # how long a standby that is cut off from etcd answers
CLEARED_TOLD_MAX = 64

_metrics: MasterMetrics | None = None


def _shared_metrics() -> MasterMetrics:
    """Made once: nothing is decided by them, and they take long to make."""
    global _metrics
    if _metrics is None:
        _metrics = MasterMetrics()
    return _metrics


@dataclass(frozen=True)
class Registered:
    """The answer to a registration."""

    index: int
    durable_seq: int
    need_inventory: bool
    cluster_id: bytes
    current: tuple[bytes, ...]
    cleared: tuple[bytes, ...]
    barrier: int
    heartbeat_s: float


class RecordingMetrics:
    """MasterMetrics whose counts of events go into the event log too."""

    def __init__(self, host: str, log: EventLog) -> None:
        self.events = self
        self._host = host
        self._log = log

    def labels(self, event: str) -> RecordingMetrics:
        self._log.event(self._host, event)
        return self

    def inc(self) -> None:
        return

    def __getattr__(self, name: str) -> Any:
        return getattr(_shared_metrics(), name)


class StreamSession:
    """SegmentSession on one simulated connection."""

    def __init__(self, end: End, directory: Directory, log: EventLog) -> None:
        self._end = end
        self._directory = directory
        self._log = log
        self._accepted = False
        self._closed = asyncio.get_running_loop().create_future()

    def accept(self, segment_index: int, durable_seq: int, need_inventory: bool) -> None:
        state = self._directory.state
        self._end.send(
            (
                "registered",
                Registered(
                    segment_index,
                    durable_seq,
                    need_inventory,
                    state.cluster_id,
                    tuple(state.namespaces.current_ids()),
                    tuple(state.namespaces.cleared_ids(CLEARED_TOLD_MAX)),
                    state.barriers.newest,
                    HEARTBEAT_S,
                ),
            )
        )
        self._accepted = True

    def ack(self, durable_seq: int) -> None:
        self._end.send(("ack", durable_seq))

    def request_inventory(self) -> None:
        self._end.send(("inventory_request",))

    def limit_quotas(self, limits: object) -> None:
        """There are none."""

    def retire_namespaces(self, namespaces: tuple[bytes, ...], barrier: int) -> None:
        if self._accepted:
            self._end.send(("retire", namespaces, barrier))

    def refuse_entries(self, last_seq: int, entries: int, reason: str) -> None:
        self._end.send(("refused", entries))

    def close(self, status: Status, reason: str) -> None:
        if not self._closed.done():
            self._closed.set_result(f"{status.name}: {reason}")

    async def closed(self) -> str:
        why: str = await self._closed
        return why


class MasterNode:
    """One life of a master. `on_failed` hears of what ends it from within, `on_leads` of each directory with which it leads."""

    def __init__(
        self,
        network: Network,
        process: Process,
        log: EventLog,
        dice: random.Random,
        options: EtcdOptions,
        limits: StateLimits,
        on_failed: Callable[[MasterNode, KvstoreError], None],
        on_leads: Callable[[MasterNode, Directory], None],
        ids: SegmentIds,
    ) -> None:
        self.process = process
        self.roles = Roles()
        self.replica: Replica | None = None
        self._network = network
        self._log = log
        self._metrics: Any = RecordingMetrics(process.host, log)
        self._dice = dice
        self._limits = limits
        self._on_failed = on_failed
        self._on_leads = on_leads
        self._ids = ids
        self.store: EtcdStore = etcd_store(network, process, options)
        self.store.announce(process.host)
        self._clears = ClearWatch(lambda: process.host, self.store.attendance)
        self.streams = 0
        network.servers[process.host] = self
        process.start(self._run(), "master")

    @property
    def host(self) -> str:
        return self.process.host

    @property
    def directory(self) -> Directory | None:
        return self.roles.directory

    @property
    def applied_revision(self) -> int | None:
        """Of a standby: everything up to it is in its directory. None while it leads, or loads."""
        follower = self.replica._follower if self.replica is not None else None
        if follower is None or self.roles.directory is not None or not follower.loads:
            return None
        backend = self.roles._backend
        return follower.revision if isinstance(backend, Standby) and backend is follower.standby else None

    @property
    def index(self) -> DirectoryIndex:
        """Whether it may answer from it now or not."""
        backend = self.roles._backend
        assert backend is not None
        return backend.index

    def answers_for(self, ns: bytes) -> bool:
        """By its own clock, whoever asks."""
        return self.process.context.copy().run(self._answers_for, ns)

    def _answers_for(self, ns: bytes) -> bool:
        try:
            return self.roles.backend.is_current(ns)
        except RefusedError:
            return False

    @property
    def is_cut_off(self) -> bool:
        """By its own clock too."""
        return self.process.context.copy().run(lambda: self.roles.is_cut_off)

    def is_reloading(self, segment_id: bytes) -> bool:
        """Whether a standby knows that it has yet to read a segment's log again."""
        follower = self.replica._follower if self.replica is not None else None
        return follower is not None and segment_id in follower.replay.to_reload

    async def _run(self) -> None:
        while True:
            try:
                await self.store.open()
                break
            except KvstoreError as error:
                self._log.say(self.host, f"can't start: {error}")
                await asyncio.sleep(START_RETRY_S)
        assert self.store.attendance is not None
        keeper = AttendanceKeeper(self.store.attendance, self.roles, self.host, STANDBY_READS_S)
        self.replica = Replica(
            self.store, self.roles, self._metrics, self._leads, self._failed, token="", keeper=keeper
        )
        await self.replica.start()
        self._log.say(self.host, "serves")

    def _leads(self, fence: Fence, recovered: Recovered) -> Directory:
        self._log.say(
            self.host,
            f"leads term {fence.term}: {recovered.index.entry_count} entries, {len(recovered.segments)} segments",
        )
        directory = Directory(
            self.store,
            fence,
            recovered,
            self._limits,
            POLICIES["host-first"](random.Random(self._dice.getrandbits(32))),
            self._metrics,
            run_bytes=RUN_BYTES,
            on_fenced=self._fenced,
            on_failed=self._failed,
        )
        self._ids.leads(self.host)
        self._on_leads(self, directory)
        return directory

    def _fenced(self, error: FencedError) -> None:
        self._log.say(self.host, f"fenced: {error}")

    def _failed(self, error: KvstoreError) -> None:
        if self.process.alive:
            self._on_failed(self, error)

    # ---- control port ----------------------------------------------------------------------------------------

    def on_connect(self, end: End) -> None:
        self.process.start(self._attach(end), "attach")

    async def _attach(self, end: End) -> None:
        try:
            kind, registration = await end.receive()
        except ConnectionEnded:
            return
        assert kind == "register"
        directory = self.roles.directory
        if directory is None:
            end.close("NOT_LEADER: this master is a standby")
            return
        session = StreamSession(end, directory, self._log)
        number = directory.open_session(session)
        self.streams += 1
        reader = asyncio.ensure_future(self._read(directory, number, end, session))
        try:
            self._attached(directory, number, registration)
            why = await session.closed()
        finally:
            reader.cancel()
            directory.end_session(number)
            self.streams -= 1
        self._log.say(self.host, f"closed the stream of {end.peer_host}: {why}")
        end.close(why)

    def _attached(self, directory: Directory, number: int, registration: Registration) -> None:
        newcomer, table = registration.endpoint, directory.state.segments
        before = table.get(newcomer.segment_id)
        gone = before is None or before.state is SegmentState.GONE
        directory.handle(ev.SegmentAttached(number, registration))
        after = table.get(newcomer.segment_id)
        if after is None or after.record.endpoint.pool_id != newcomer.pool_id:
            return
        self._ids.heard(self.host, newcomer.pool_id)
        if before is not None and not gone and before is not after:
            self._ids.taken(self.host, before.record.endpoint, newcomer)

    async def _read(self, directory: Directory, number: int, end: End, session: StreamSession) -> None:
        try:
            while True:
                message = await end.receive()
                sender = directory.state.segments.of_session(number)
                if sender is not None and message[0] in ("journal", "inventory"):
                    self._ids.heard(self.host, sender.record.endpoint.pool_id)
                if message[0] == "journal":
                    directory.handle(ev.JournalReceived(number, *message[1:]))
                elif message[0] == "inventory":
                    directory.handle(ev.InventoryReceived(number, *message[1:]))
                elif message[0] == "retired":
                    directory.handle(ev.NamespacesRetired(number, message[1]))
                elif message[0] == "leaving":
                    directory.handle(ev.SegmentLeaving(number, message[1]))
                await directory.committer.wait_for_room()
        except ConnectionEnded as error:
            session.close(Status.OK, str(error))

    def on_heartbeat(self, beat: ev.HeartbeatReceived) -> bool:
        directory = self.roles.directory
        if directory is None:
            return False
        self._ids.heard(self.host, beat.pool_id)
        return directory.heartbeat(beat)

    def on_map(self) -> tuple[int, list[MapRecord]]:
        backend = self.roles.backend
        return backend.map_epoch, backend.segment_map()

    async def on_drain(self, segment_id: bytes, draining: bool) -> None:
        if self.roles.directory is None:
            self.roles.refuse_change()
        await self.roles.directory.set_draining(segment_id, draining)

    async def on_clear_progress(self, ns: bytes) -> list[str] | None:
        """Who may still answer for an ended epoch's id; None: not known. Raises RefusedError or StoreError."""
        if self.roles.directory is None:
            self.roles.refuse_change()
        progress = await self._clears.progress(self.roles.directory, ns)
        if progress is None:
            return None
        return [f"{each.address}: {each.why}" for each in [*progress.masters, *progress.segments]]

    # ---- directory port --------------------------------------------------------------------------------------

    async def on_open(self, identity: bytes) -> NamespaceReply:
        return await self.roles.backend.open_namespace(identity, "model")

    async def on_bump(self, ns: bytes) -> NamespaceReply:
        return await self.roles.backend.bump_namespace(ns)

    def on_lookup(self, ns: bytes, fingerprints: list[bytes]) -> list[MapRecord | None]:
        """Who holds each. Raises RefusedError."""
        backend = self._current(ns)
        body = LookupRequest(ns, b"".join(fingerprints)).encode()
        reply = LookupReply.decode(backend.index.lookup(body))
        by_index = {record.index: record for record in backend.segment_map()}
        return [
            by_index.get(index) if length else None
            for index, length in zip(reply.segments, reply.lengths, strict=True)
        ]

    def on_place(self, ns: bytes, fingerprints: list[bytes], lengths: list[int]) -> list[MapRecord | int]:
        """Where each goes, or what PLACE says instead. Raises RefusedError."""
        backend = self._current(ns)
        body = PlaceRequest(ns, tuple(lengths), b"".join(fingerprints)).encode()
        reply = PlaceReply.decode(backend.place(body, 0xFFFFFFFF))
        by_index = {record.index: record for record in backend.segment_map()}
        return [by_index.get(index, index) for index in reply.segments]

    def _current(self, ns: bytes) -> Backend:
        backend = self.roles.backend
        if not backend.is_current(ns):
            raise RefusedError(Status.STALE_NAMESPACE, "open it again")
        return backend


def mirror_on(network: Network) -> Any:
    """In place of the product's map mirror, which is gRPC all through: asks the leader for its map, again and again."""

    async def mirror(roles: Roles, standby: Standby, token: str) -> None:
        process = current_process()
        while True:
            address = roles.leader_address
            if address and address != process.host:
                try:
                    epoch, segments = await network.call(process, address, "map", timeout_s=1.0)
                    if roles.leader_address == address and epoch != standby.map_epoch:
                        standby.mirror(epoch, segments)
                except (Unreachable, asyncio.TimeoutError, RefusedError):
                    pass
            await asyncio.sleep(MIRROR_PERIOD_S)

    return mirror
