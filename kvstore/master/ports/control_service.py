"""The control service (proto/kvstore/v1/control.proto): segments attach, stream journals, and heartbeat;
standbys watch the map."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from kvstore.common.logs import log_throttled
from kvstore.common.reachability import peer_host
from kvstore.master.directory import Directory
from kvstore.master.metrics import MasterMetrics
from kvstore.master.ports.refusals import GRPC_CODES, backend_of, refuse_as_standby
from kvstore.master.roles import Backend, Roles
from kvstore.master.state import events as ev
from kvstore.master.state.changes import Registration
from kvstore.master.state.endpoint import Endpoint
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import control_pb2_grpc
from kvstore_client.protocol import PEER_ID_BYTES, VERSION_MAX, VERSION_MIN, Status

logger = logging.getLogger(__name__)

REGISTER_TIMEOUT_S = 10.0
OUTBOX_MAX = 1024
# Of namespaces cleared lately, so many are named to a segment that attaches.
CLEARED_TOLD_MAX = 4096
UNIX_PATH_BYTES_MAX = 107
HOST_BYTES_MAX = 255
VERSION_CHARACTERS_MAX = 64


class SegmentStream:
    """What goes down one Attach stream. Acknowledgements are cumulative, so only the newest waits;
    everything else is queued, and a segment that does not read its queue is cut off."""

    def __init__(self, directory: Directory, heartbeat_interval_ms: int) -> None:
        self._directory = directory
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._outbox: deque[Any] = deque()
        self._accepted = False
        self._ack_seq: int | None = None
        self._wake = asyncio.Event()
        self.closed: tuple[Status, str] | None = None

    def accept(self, segment_index: int, durable_seq: int, need_inventory: bool) -> None:
        registered = pb.Registered(
            protocol_version=VERSION_MAX,
            segment_index=segment_index,
            durable_seq=durable_seq,
            need_inventory=need_inventory,
            heartbeat_interval_ms=self._heartbeat_interval_ms,
            cluster_id=self._directory.state.cluster_id,
            current_namespaces=self._directory.state.namespaces.current_ids(),
            cleared_namespaces=self._directory.state.namespaces.cleared_ids(CLEARED_TOLD_MAX),
            barrier=self._directory.state.barriers.newest,
        )
        self._queue(pb.MasterMessage(registered=registered))
        self._accepted = True

    def ack(self, durable_seq: int) -> None:
        self._ack_seq = durable_seq
        self._wake.set()

    def request_inventory(self) -> None:
        self._queue(pb.MasterMessage(inventory_request=pb.InventoryRequest()))

    def retire_namespaces(self, namespaces: tuple[bytes, ...], barrier: int) -> None:
        if not self._accepted:
            return  # the registration's answer will carry the current ones
        retired = pb.RetireNamespaces(namespaces=namespaces, barrier=barrier)
        self._queue(pb.MasterMessage(retire_namespaces=retired))

    def refuse_entries(self, last_seq: int, entries: int, reason: str) -> None:
        refused = pb.EntriesRefused(last_seq=last_seq, entries=entries, reason=reason)
        self._queue(pb.MasterMessage(entries_refused=refused))

    def close(self, status: Status, reason: str) -> None:
        if self.closed is None:
            self.closed = (status, reason)
        self._wake.set()

    def _queue(self, message: Any) -> None:
        if len(self._outbox) >= OUTBOX_MAX:
            self.close(Status.UNAVAILABLE, f"{OUTBOX_MAX} messages wait unread: attach again")
            return
        self._outbox.append(message)
        self._wake.set()

    async def pump(self, context: Any) -> None:
        """Writes until the session is closed; what was queued before goes out first."""
        while True:
            while self._outbox:
                await context.write(self._outbox.popleft())
            if self._ack_seq is not None:
                seq, self._ack_seq = self._ack_seq, None
                await context.write(pb.MasterMessage(journal_ack=pb.JournalAck(durable_seq=seq)))
                continue
            if self.closed is not None:
                return
            self._wake.clear()
            await self._wake.wait()


class ControlService(control_pb2_grpc.ControlServicer):  # type: ignore[misc]
    def __init__(self, roles: Roles, metrics: MasterMetrics, *, heartbeat_interval_ms: int) -> None:
        self._roles = roles
        self._metrics = metrics
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._map: tuple[weakref.ref[Backend], Any] | None = None  # of this backend, for all who watch it

    async def Attach(self, request_iterator: AsyncIterator[Any], context: Any) -> None:
        registration = await self._registration(request_iterator, context)
        directory = self._roles.directory
        if directory is None:
            await refuse_as_standby(context, self._roles)
        session = SegmentStream(directory, self._heartbeat_interval_ms)
        number = directory.open_session(session)
        reader = asyncio.create_task(
            self._read(directory, number, request_iterator, session), name="attach-reader"
        )
        try:
            directory.handle(ev.SegmentAttached(number, registration))
            await session.pump(context)
        finally:
            reader.cancel()
            directory.end_session(number)
        if session.closed is not None and session.closed[0] is not Status.OK:
            status, reason = session.closed
            await context.abort(GRPC_CODES.get(status, grpc.StatusCode.INTERNAL), reason)

    async def _read(
        self, directory: Directory, number: int, messages: AsyncIterator[Any], session: SegmentStream
    ) -> None:
        status, reason = Status.OK, "the segment closed the stream"
        try:
            async for message in messages:
                kind = message.WhichOneof("body")
                if kind == "journal":
                    batch = message.journal
                    self._metrics.journal_entries.inc(max(0, batch.last_seq - batch.first_seq + 1))
                    directory.handle(
                        ev.JournalReceived(number, batch.first_seq, batch.last_seq, batch.groups)
                    )
                elif kind == "inventory":
                    chunk = message.inventory
                    directory.handle(
                        ev.InventoryReceived(number, chunk.last_seq, chunk.groups, chunk.first, chunk.last)
                    )
                elif kind == "leaving":
                    directory.handle(ev.SegmentLeaving(number, message.leaving.reason))
                elif kind == "retired":
                    directory.handle(ev.NamespacesRetired(number, message.retired.barrier))
                elif kind == "register":
                    session.close(Status.BAD_REQUEST, "a stream registers once")
                # A kind this master does not know comes from a later revision: ignored.
                await directory.committer.wait_for_room()
        except Exception as error:
            status, reason = Status.INTERNAL, f"reading the stream failed: {error}"
            fields: dict[str, Any] = {"session": number, "error": str(error)}
            log_throttled(logger, logging.WARNING, "attach_stream_failed", type(error).__name__, **fields)
        session.close(status, reason)

    async def _registration(self, messages: AsyncIterator[Any], context: Any) -> Registration:
        """Checked, or the RPC is aborted."""
        try:
            first = await asyncio.wait_for(anext(aiter(messages), None), REGISTER_TIMEOUT_S)
        except asyncio.TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no Register came")
        if first is None or first.WhichOneof("body") != "register":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message is Register")
        assert first is not None, "abort() raises"
        said = first.register
        if not VERSION_MIN <= said.protocol_version <= VERSION_MAX:
            text = (
                f"protocol version {said.protocol_version} is not spoken here: "
                f"this master speaks {VERSION_MIN} to {VERSION_MAX}"
            )
            self._metrics.version_refusals.labels("control").inc()
            peer = context.peer()
            log_throttled(logger, logging.ERROR, "version_refused", peer_host(peer), peer=peer, text=text)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        if (wrong := _wrong_with(said)) is not None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong)
        return Registration(
            Endpoint.of(said),
            said.last_seq,
            said.oldest_kept_seq,
            said.software_version[:VERSION_CHARACTERS_MAX],
            peer_host(context.peer()),
        )

    async def Heartbeat(self, request: Any, context: Any) -> Any:
        directory = self._roles.directory
        known = directory is not None and directory.heartbeat(
            ev.HeartbeatReceived(
                request.segment_id,
                request.pool_id,
                request.used_bytes,
                request.object_count,
                request.pinned_bytes,
                request.quarantined_slots,
                request.digest_mismatches,
                request.evicted_objects,
            )
        )
        return pb.HeartbeatReply(known=known, map_epoch=self._roles.map_epoch)

    async def WatchClusterMap(self, request: Any, context: Any) -> AsyncIterator[Any]:
        sent = 0
        while True:
            backend = await backend_of(self._roles, context)
            if backend.map_epoch != sent:
                sent = backend.map_epoch
                yield self._cluster_map(backend)
            else:
                await backend.map_changed()

    def _cluster_map(self, backend: Backend) -> Any:
        """Made once an epoch."""
        if self._map is None or self._map[0]() is not backend or self._map[1].epoch != backend.map_epoch:
            self._map = weakref.ref(backend), _cluster_map(backend)
        return self._map[1]


def _cluster_map(backend: Backend) -> Any:
    segments = []
    for segment in backend.segment_map():
        entries, _ = backend.index.segment_usage(segment.index)
        segments.append(
            pb.SegmentInfo(
                index=segment.index,
                state=segment.state,
                segment_id=segment.segment_id,
                pool_id=segment.pool_id,
                host=segment.host,
                tcp_port=segment.tcp_port,
                unix_path=segment.unix_path,
                capacity_bytes=segment.capacity_bytes,
                used_bytes=segment.used_bytes,
                object_count=entries,
            )
        )
    return pb.ClusterMap(epoch=backend.map_epoch, segments=segments, cluster_id=backend.cluster_id)


def _wrong_with(said: Any) -> str | None:
    for name in ("segment_id", "pool_id"):
        if len(getattr(said, name)) != PEER_ID_BYTES or not any(getattr(said, name)):
            return f"{name} has {PEER_ID_BYTES} bytes and is not zero"
    if not 0 < len(said.host.encode()) <= HOST_BYTES_MAX:
        return f"host has 1 to {HOST_BYTES_MAX} bytes"
    if said.tcp_port > 65_535 or (said.tcp_port == 0 and not said.unix_path):
        return "tcp_port is 1 to 65535, or 0 with a unix_path"
    if len(said.unix_path.encode()) > UNIX_PATH_BYTES_MAX:
        return f"unix_path has at most {UNIX_PATH_BYTES_MAX} bytes: use a shorter directory"
    if said.capacity_bytes == 0:
        return "capacity_bytes is not zero"
    return None
