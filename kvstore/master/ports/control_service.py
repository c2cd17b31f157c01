"""The control service (proto/kvstore/v1/control.proto): segments register and say goodbye, standbys watch the map. What a
segment has to tell meanwhile comes by its link (segment_link.py)."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from kvstore.common.control_metadata import CLUSTER_KEY
from kvstore.common.logs import log_throttled
from kvstore.common.reachability import peer_host
from kvstore.master.directory import Directory
from kvstore.master.metrics import MasterMetrics
from kvstore.master.ports.refusals import GRPC_CODES, backend_of, refuse_as_standby
from kvstore.master.ports.segment_link import LinkedSession, LinkTable
from kvstore.master.ports.streamed_journal import StreamedSession, take_streamed
from kvstore.master.roles import Backend, Roles
from kvstore.master.state import events as ev
from kvstore.master.state.changes import Registration
from kvstore.master.state.endpoint import Endpoint
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import control_pb2_grpc
from kvstore_client.protocol import PEER_ID_BYTES, VERSION_MAX, VERSION_MIN, Status
from kvstore_client.protocol.link import LIMITS_MAX, LimitUse

logger = logging.getLogger(__name__)

REGISTER_TIMEOUT_S = 10.0
UNIX_PATH_BYTES_MAX = 107
HOST_BYTES_MAX = 255
VERSION_CHARACTERS_MAX = 64


class ControlService(control_pb2_grpc.ControlServicer):  # type: ignore[misc]
    def __init__(
        self, roles: Roles, metrics: MasterMetrics, links: LinkTable, *, heartbeat_interval_ms: int
    ) -> None:
        self._roles = roles
        self._metrics = metrics
        self._links = links
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._map: tuple[weakref.ref[Backend], Any] | None = None  # of this backend, for all who watch it

    async def Attach(self, request_iterator: AsyncIterator[Any], context: Any) -> None:
        said = await self._first_message(request_iterator, context)
        registration = await self._registration(said, context)
        directory = self._roles.directory
        # What a segment takes for current, it serves: one whose time may be over can't say it.
        if directory is None or not self._roles.leads_for_certain:
            await refuse_as_standby(context, self._roles)
        await _check_cluster(said.expected_cluster_id, directory.cluster_id, context)
        session = self._new_session(said, directory)
        number = directory.open_session(session)
        if isinstance(session, LinkedSession):
            session.number = number
        reader = asyncio.create_task(
            self._read(directory, number, request_iterator, session), name="attach-reader"
        )
        try:
            directory.handle(ev.SegmentAttached(number, registration))
            await session.pump(context)
        finally:
            reader.cancel()
            if isinstance(session, LinkedSession):
                session.end_link()
            directory.end_session(number)
        if session.closed is not None and session.closed[0] is not Status.OK:
            status, reason = session.closed
            await context.abort(GRPC_CODES.get(status, grpc.StatusCode.INTERNAL), reason)

    def _new_session(self, said: Any, directory: Directory) -> LinkedSession | StreamedSession:
        if not said.makes_link:
            return StreamedSession(directory, self._heartbeat_interval_ms)
        return LinkedSession(
            directory,
            self._heartbeat_interval_ms,
            self._links,
            said.segment_id,
            said.pool_id,
            said.takes_questions,
            said.takes_copy_orders,
        )

    async def _read(
        self,
        directory: Directory,
        number: int,
        messages: AsyncIterator[Any],
        session: LinkedSession | StreamedSession,
    ) -> None:
        status, reason = Status.OK, "the segment closed the stream"
        try:
            async for message in messages:
                kind = message.WhichOneof("body")
                if kind == "leaving":
                    directory.handle(ev.SegmentLeaving(number, message.leaving.reason))
                elif kind == "away":
                    directory.handle(ev.SegmentAway(number, message.away.reason))
                elif kind == "retired":
                    directory.handle(ev.NamespacesRetired(number, message.retired.barrier))
                elif kind == "kept":
                    directory.questions.answered(number, message.kept.question, message.kept)
                elif kind == "dropped":
                    directory.questions.answered(number, message.dropped.question, message.dropped)
                elif kind == "retention_told":
                    told = message.retention_told
                    directory.questions.answered(number, told.question, told)
                elif kind == "copied":
                    directory.questions.answered(number, message.copied.question, message.copied)
                elif kind == "hottest_told":
                    told = message.hottest_told
                    directory.questions.answered(number, told.question, told)
                elif kind == "drain_me":
                    if (told := directory.drain_of_session(number)) is not None:
                        session.queue(
                            pb.MasterMessage(
                                drain_told=pb.DrainTold(
                                    phase=told.phase,
                                    remaining_objects=told.remaining_objects,
                                    remaining_bytes=told.remaining_bytes,
                                )
                            )
                        )
                elif kind == "register":
                    session.close(Status.BAD_REQUEST, "a stream registers once")
                elif isinstance(session, StreamedSession):
                    await take_streamed(message, number, directory, self._metrics)
                elif kind in ("journal", "inventory"):
                    text = "the journal of a segment that makes a link comes by that link"
                    session.close(Status.BAD_REQUEST, text)
                # A kind this master does not know comes from a later revision: ignored.
        except Exception as error:
            status, reason = Status.INTERNAL, f"reading the stream failed: {error}"
            fields: dict[str, Any] = {"session": number, "error": str(error)}
            log_throttled(logger, logging.WARNING, "attach_stream_failed", type(error).__name__, **fields)
        session.close(status, reason)

    async def _first_message(self, messages: AsyncIterator[Any], context: Any) -> Any:
        """The Register, or the RPC is aborted."""
        try:
            first = await asyncio.wait_for(anext(aiter(messages), None), REGISTER_TIMEOUT_S)
        except asyncio.TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no Register came")
        if first is None or first.WhichOneof("body") != "register":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message is Register")
        assert first is not None, "abort() raises"
        return first.register

    async def _registration(self, said: Any, context: Any) -> Registration:
        """Checked, or the RPC is aborted."""
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
                tuple(LimitUse(use.used, use.limit, use.refused) for use in request.limits[:LIMITS_MAX]),
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


async def _check_cluster(expected: bytes, own: bytes, context: Any) -> None:
    """Before the segment is in the map: its pages belong to another cluster, and clients of this one must not find it."""
    if expected and expected != own:
        text = f"this is cluster {own.hex()}, and the segment's pages belong to {expected.hex()}"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text, ((CLUSTER_KEY, own.hex()),))


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
