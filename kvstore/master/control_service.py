"""The control service (proto/kvstore/v1/control.proto): segments attach, stream journals, and heartbeat;
tools read the map."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from kvstore.common.errors import RefusedError
from kvstore.common.logs import log_event
from kvstore.master import events as ev
from kvstore.master.changes import Registration
from kvstore.master.directory import Directory
from kvstore.master.metrics import MasterMetrics
from kvstore.master.roles import Backend, Roles
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import control_pb2_grpc
from kvstore_client.wire import PEER_ID_BYTES, VERSION_MAX, VERSION_MIN, Status

logger = logging.getLogger(__name__)

REGISTER_TIMEOUT_S = 10.0
OUTBOX_MAX = 1024
UNIX_PATH_BYTES_MAX = 107
HOST_BYTES_MAX = 255
MESSAGE_BYTES_MAX = 8 << 20

# Tells a segment that was refused that it is worth asking again soon.
STANDBY_METADATA = (("kvstore-role", "standby"),)

_GRPC_CODES = {
    Status.BAD_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    Status.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Status.TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    Status.NOT_LEADER: grpc.StatusCode.UNAVAILABLE,
}


class AttachSession:
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
        )
        self._queue(pb.MasterMessage(registered=registered))
        self._accepted = True

    def ack(self, durable_seq: int) -> None:
        self._ack_seq = durable_seq
        self._wake.set()

    def request_inventory(self) -> None:
        self._queue(pb.MasterMessage(inventory_request=pb.InventoryRequest()))

    def retire_namespaces(self, namespaces: tuple[bytes, ...]) -> None:
        if not self._accepted:
            return  # the registration's answer will carry the current ones
        self._queue(pb.MasterMessage(retire_namespaces=pb.RetireNamespaces(namespaces=namespaces)))

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
    def __init__(
        self, roles: Roles, metrics: MasterMetrics, *, token: bytes, heartbeat_interval_ms: int
    ) -> None:
        self._roles = roles
        self._metrics = metrics
        self._token = token
        self._heartbeat_interval_ms = heartbeat_interval_ms

    async def Attach(self, request_iterator: AsyncIterator[Any], context: Any) -> None:
        registration = await self._registration(request_iterator, context)
        directory = self._roles.directory
        if directory is None:
            text = self._roles.not_leader_text()
            await context.abort(grpc.StatusCode.UNAVAILABLE, text, STANDBY_METADATA)
        assert directory is not None, "abort() raises"
        session = AttachSession(directory, self._heartbeat_interval_ms)
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
            await context.abort(_GRPC_CODES.get(status, grpc.StatusCode.INTERNAL), reason)

    async def _read(
        self, directory: Directory, number: int, messages: AsyncIterator[Any], session: AttachSession
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
                elif kind == "register":
                    session.close(Status.BAD_REQUEST, "a stream registers once")
                # A kind this master does not know comes from a later revision: ignored.
                await directory.committer.wait_for_room()
        except Exception as error:
            status, reason = Status.INTERNAL, f"reading the stream failed: {error}"
            log_event(logger, logging.WARNING, "attach_stream_failed", session=number, error=str(error))
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
            log_event(logger, logging.ERROR, "version_refused", peer=context.peer(), text=text)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        if not hmac.compare_digest(said.token.encode(), self._token):
            self._metrics.unauthorized.labels("control").inc()
            log_event(logger, logging.WARNING, "unauthorized", peer=context.peer(), host=said.host)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is wrong")
        if (wrong := _wrong_with(said)) is not None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong)
        return Registration(
            said.segment_id,
            said.pool_id,
            said.host,
            said.tcp_port,
            said.unix_path,
            said.capacity_bytes,
            said.last_seq,
            said.oldest_kept_seq,
        )

    async def Heartbeat(self, request: Any, context: Any) -> Any:
        directory = self._roles.directory
        known = directory is not None and directory.heartbeat(
            ev.HeartbeatReceived(
                request.segment_id, request.pool_id, request.used_bytes, request.object_count
            )
        )
        return pb.HeartbeatReply(known=known, map_epoch=self._roles.map_epoch)

    async def ListNamespaces(self, request: Any, context: Any) -> Any:
        backend = await self._backend(context)
        usage = backend.index.namespace_usage()
        infos = []
        for namespace in backend.namespaces():
            entries, used_bytes = usage.get(namespace.id, (0, 0))
            infos.append(
                pb.NamespaceInfo(
                    id=namespace.id,
                    epoch=namespace.epoch,
                    name=namespace.name,
                    identity=namespace.identity.decode(),
                    object_count=entries,
                    used_bytes=used_bytes,
                )
            )
        return pb.ListNamespacesReply(namespaces=infos)

    async def GetClusterMap(self, request: Any, context: Any) -> Any:
        return _cluster_map(await self._backend(context))

    async def WatchClusterMap(self, request: Any, context: Any) -> AsyncIterator[Any]:
        sent = 0
        while True:
            backend = await self._backend(context)
            if backend.map_epoch != sent:
                sent = backend.map_epoch
                yield _cluster_map(backend)
            else:
                await backend.map_changed()

    async def _backend(self, context: Any) -> Backend:
        try:
            return self._roles.backend
        except RefusedError as error:
            await context.abort(_GRPC_CODES[error.status], str(error))
            raise


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


class ControlServer:
    """The gRPC server around the service."""

    def __init__(self, service: ControlService) -> None:
        options = [
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.so_reuseport", 0),  # a second master on the same port fails instead of sharing it
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            # Segments ping idle streams to notice a dead master within seconds; gRPC would call that abuse.
            ("grpc.http2.min_ping_interval_without_data_ms", 500),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.keepalive_permit_without_calls", 1),
        ]
        self._server = grpc.aio.server(options=options)
        control_pb2_grpc.add_ControlServicer_to_server(service, self._server)
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """OSError names the address."""
        try:
            self.port = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise OSError(f"can't listen on {host}:{port}: {error}") from error
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(grace=0.5)
