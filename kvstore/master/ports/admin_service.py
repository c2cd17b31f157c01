"""The admin service (proto/kvstore/v1/admin.proto): what operators ask and change. Reads by every master, changes by the leader."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio

from kvstore import __version__
from kvstore.common.errors import RefusedError, StoreError
from kvstore.master.clear_watch import ClearWatch
from kvstore.master.directory import Directory
from kvstore.master.ports.health import leader_problems, limit_problems, standby_problems
from kvstore.master.ports.keeping import keep_objects, retention, wrong_with_keep
from kvstore.master.ports.quotas import quota_message, quota_subject, wrong_with_quota
from kvstore.master.ports.refusals import backend_of, refuse, refuse_as_standby
from kvstore.master.roles import Backend, Roles
from kvstore.master.segment_questions import TIMEOUT_S, TooManyQuestions
from kvstore.master.state.layout import QuotaKind, QuotaRecord
from kvstore.master.state.quotas import tag_of
from kvstore.v1 import admin_pb2 as pb
from kvstore.v1 import admin_pb2_grpc
from kvstore_client.protocol import FINGERPRINT_BYTES, NAMESPACE_BYTES, PEER_ID_BYTES, MapRecord, SegmentState
from kvstore_client.protocol.link import LIMITS

_SERVING = (SegmentState.LIVE, SegmentState.DRAINING)


@dataclass(frozen=True)
class AboutMaster:
    """What does not change with the role."""

    metadata_kind: str
    started_at: float  # time.monotonic()
    control_address: Callable[[], str]
    readiness: Callable[[], tuple[bool, str]]
    directory_port: Callable[[], int] = lambda: 0  # 0: not open
    limits: Callable[[], list[str]] = list  # of this process that are reached now


class AdminService(admin_pb2_grpc.AdminServicer):  # type: ignore[misc]
    def __init__(self, roles: Roles, about: AboutMaster, clears: ClearWatch) -> None:
        self._roles = roles
        self._clears = clears
        self._about = about

    # ---- reads ---------------------------------------------------------------------------------------------

    async def GetStatus(self, request: Any, context: Any) -> Any:
        roles, about = self._roles, self._about
        status = pb.Status(
            role=pb.ROLE_LOADING,
            leader_address=roles.leader_address,
            software_version=__version__,
            uptime_ms=_ms_since(about.started_at),
            metadata_kind=about.metadata_kind,
            directory_port=about.directory_port(),
        )
        try:
            backend = roles.backend
        except RefusedError as error:
            status.problems.append(str(error))
            status.problems.extend(about.limits())
            return status
        _add_cluster(status, backend)
        if roles.directory is not None:
            status.role, status.leader_address = pb.ROLE_LEADER, about.control_address()
            _add_leader(status, roles.directory)
        else:
            status.role = pb.ROLE_STANDBY
            if roles.lag_revisions is not None:
                status.lag_revisions = roles.lag_revisions
            status.problems.extend(standby_problems(*about.readiness()))
        status.problems.extend(about.limits())
        return status

    async def ListSegments(self, request: Any, context: Any) -> AsyncIterator[Any]:
        backend = await backend_of(self._roles, context)
        for record in backend.segment_map():
            yield _segment(backend, record, self._roles.directory)

    async def ListNamespaces(self, request: Any, context: Any) -> AsyncIterator[Any]:
        backend = await backend_of(self._roles, context)
        usage = backend.index.namespace_usage()
        quotas = {(quota.kind, quota.subject): quota.limit_bytes for quota in backend.quotas()}
        for namespace in list(backend.namespaces()):
            objects, size_bytes = usage.get(namespace.id, (0, 0))
            tag = tag_of(namespace.identity) if quotas else b""
            unused_s = None if namespace.used_at is None else time.monotonic() - namespace.used_at
            yield pb.Namespace(
                quota_bytes=quotas.get((QuotaKind.NAMESPACE, namespace.identity)),
                tag_quota_bytes=quotas.get((QuotaKind.TAG, tag)),
                unused_ms=None if unused_s is None else max(0, int(unused_s * 1000)),
                id=namespace.id,
                epoch=namespace.epoch,
                name=namespace.name,
                identity=namespace.identity.decode(),
                object_count=objects,
                object_bytes=size_bytes,
            )

    async def ListQuotas(self, request: Any, context: Any) -> AsyncIterator[Any]:
        backend = await backend_of(self._roles, context)
        usage = {ns: size_bytes for ns, (_, size_bytes) in backend.index.namespace_usage().items()}
        namespaces = list(backend.namespaces())
        for quota in list(backend.quotas()):
            yield quota_message(quota, namespaces, usage)

    async def StatObject(self, request: Any, context: Any) -> Any:
        backend = await backend_of(self._roles, context)
        await _check_bytes(context, "fingerprint", request.fingerprint, FINGERPRINT_BYTES)
        found = backend.index.find(request.fingerprint)
        if found is None:
            await _not_found(context, "the directory has no such object")
        segments, length_bytes = found
        return pb.Object(length_bytes=length_bytes, segments=segments)

    # ---- changes -------------------------------------------------------------------------------------------

    async def ClearNamespace(self, request: Any, context: Any) -> Any:
        directory = await self._leading(context)
        await _check_bytes(context, "id", request.id, NAMESPACE_BYTES)
        current = directory.is_current(request.id)
        try:
            reply = await directory.bump_namespace(request.id)
        except RefusedError as error:
            await refuse(context, error, self._roles)
        # What is left of it from now on only gets less, as segments evict it.
        objects, size_bytes = directory.index.usage_of_namespace(request.id) if current else (0, 0)
        return pb.ClearedNamespace(
            id=reply.ns,
            epoch=reply.epoch,
            already_cleared=not current,
            object_count=objects,
            object_bytes=size_bytes,
        )

    async def ForgetNamespace(self, request: Any, context: Any) -> Any:
        directory = await self._leading(context)
        await _check_bytes(context, "id", request.id, NAMESPACE_BYTES)
        try:
            await directory.forget_namespace(request.id)
        except RefusedError as error:
            await refuse(context, error, self._roles)
        objects, size_bytes = directory.index.usage_of_namespace(request.id)
        return pb.ForgottenNamespace(object_count=objects, object_bytes=size_bytes)

    async def GetClearProgress(self, request: Any, context: Any) -> Any:
        directory = await self._leading(context)
        await _check_bytes(context, "id", request.id, NAMESPACE_BYTES)
        if directory.is_current(request.id):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the namespace has not been cleared")
        try:
            progress = await self._clears.progress(directory, request.id)
        except StoreError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        if progress is None:
            await _not_found(context, "no namespace has, or had, this id")
        return progress

    async def SetQuota(self, request: Any, context: Any) -> Any:
        directory = await self._leading(context)
        if (wrong := wrong_with_quota(request)) is not None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong)
        namespaces = list(directory.namespaces())
        subject = quota_subject(request, namespaces)
        if subject is None:
            await _not_found(context, "no namespace has this id: it has been cleared or forgotten meanwhile")
        limit_bytes = None if request.remove else request.limit_bytes
        try:
            await directory.set_quota(*subject, limit_bytes)
        except RefusedError as error:
            await refuse(context, error, self._roles)
        usage = {ns: size_bytes for ns, (_, size_bytes) in directory.index.namespace_usage().items()}
        return quota_message(QuotaRecord(*subject, limit_bytes or 0), namespaces, usage)

    async def SetDraining(self, request: Any, context: Any) -> Any:
        directory = await self._leading(context)
        await _check_bytes(context, "segment_id", request.segment_id, PEER_ID_BYTES)
        try:
            await directory.set_draining(request.segment_id, request.draining)
        except RefusedError as error:
            await refuse(context, error, self._roles)
        segment = directory.state.segments.get(request.segment_id)
        if segment is None:
            await _not_found(context, "the segment has left meanwhile")
        return _segment(directory, segment.map_record(), directory)

    # ---- what segments keep in memory alone ----------------------------------------------------------------

    async def KeepObjects(self, request: Any, context: Any) -> Any:
        directory = await self._leading(context)
        await _check_bytes(context, "id", request.id, NAMESPACE_BYTES)
        if (wrong := wrong_with_keep(request)) is not None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong)
        if not directory.is_current(request.id):
            await _not_found(context, "no namespace has this id: it has been cleared or forgotten meanwhile")
        return await self._asked(context, keep_objects(directory, request, _patience_s(context)))

    async def GetRetention(self, request: Any, context: Any) -> Any:
        directory = await self._leading(context)
        return await self._asked(context, retention(directory, _patience_s(context)))

    @staticmethod
    async def _asked(context: Any, question: Awaitable[Any]) -> Any:
        try:
            return await question
        except TooManyQuestions as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

    async def _leading(self, context: Any) -> Directory:
        directory = self._roles.directory
        if directory is None:
            await refuse_as_standby(context, self._roles)
        return directory


def _add_cluster(status: Any, backend: Backend) -> None:
    """What every master knows of the cluster."""
    try:
        status.cluster_id = backend.cluster_id
    except RefusedError as error:
        status.problems.append(str(error))
    status.map_epoch = backend.map_epoch
    segments = backend.segment_map()
    counts = Counter(segment.state for segment in segments)
    for state in SegmentState:
        setattr(status.segments, state.name.lower(), counts[state])
    serving = [segment for segment in segments if segment.state in _SERVING]
    status.capacity_bytes = sum(segment.capacity_bytes for segment in serving)
    status.used_bytes = sum(segment.used_bytes for segment in serving)
    status.object_count = backend.index.entry_count
    for ns, (objects, size_bytes) in backend.index.namespace_usage().items():
        if not backend.is_current(ns):
            status.retired_object_count += objects
            status.retired_bytes += size_bytes
    status.namespace_count = backend.namespace_count


def _add_leader(status: Any, directory: Directory) -> None:
    """What the leader alone knows."""
    state, store = directory.state, directory.store_view
    status.term = state.term
    status.metadata_space = store.level.name.lower()
    status.metadata_text = store.text
    if store.size_bytes is not None:
        status.metadata_bytes = store.size_bytes
    status.commit_backlog_bytes = directory.committer.backlog_bytes
    status.pinned_bytes = sum(segment.pinned_bytes for segment in state.segments if segment.serving)
    status.problems.extend(
        leader_problems(
            time.monotonic(),
            state.segments,
            store,
            directory.committer.backlog_bytes,
            directory.data_paths.shut,
        )
    )
    status.problems.extend(limit_problems(state))


def _segment(backend: Backend, record: MapRecord, directory: Directory | None) -> Any:
    objects, size_bytes = backend.index.segment_usage(record.index)
    said = pb.Segment(
        index=record.index,
        segment_id=record.segment_id,
        pool_id=record.pool_id,
        host=record.host,
        tcp_port=record.tcp_port,
        unix_path=record.unix_path,
        state=record.state,
        capacity_bytes=record.capacity_bytes,
        used_bytes=record.used_bytes,
        object_count=objects,
        object_bytes=size_bytes,
    )
    segment = directory.state.segments.get(record.segment_id) if directory is not None else None
    if segment is not None:
        said.attached = segment.registered
        said.draining = segment.record.draining
        said.pinned_bytes = segment.pinned_bytes
        said.quarantined_slots = segment.quarantined_slots
        said.digest_mismatches = segment.digest_mismatches
        said.evicted_objects = segment.evicted_objects
        said.limits.extend(
            pb.SegmentLimit(name=name, used=use.used, limit=use.limit, refused=use.refused)
            for name, use in zip(LIMITS, segment.limits, strict=False)
        )
        assert directory is not None
        if said.draining and (drain := directory.drains.progress(record.segment_id)) is not None:
            said.drain.CopyFrom(
                pb.DrainProgress(
                    phase=drain.phase,
                    moved_objects=drain.moved_objects,
                    moved_bytes=drain.moved_bytes,
                    remaining_objects=drain.remaining_objects,
                    remaining_bytes=drain.remaining_bytes,
                    trouble=drain.trouble,
                )
            )
        said.software_version = segment.software_version
        said.attached_from = segment.attached_from
        if segment.recovering_until is None:
            said.heard_ms = _ms_since(segment.heard_at)
    return said


def _ms_since(moment: float) -> int:
    return max(0, int((time.monotonic() - moment) * 1000))


def _patience_s(context: Any) -> float:
    """What segments get of the caller's time: the answer has to come back in it."""
    left_s = context.time_remaining()
    return TIMEOUT_S if left_s is None else max(0.05, min(TIMEOUT_S, 0.8 * left_s))


async def _check_bytes(context: Any, name: str, value: bytes, size: int) -> None:
    if len(value) != size:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, f"{name} has {size} bytes, this one has {len(value)}"
        )


async def _not_found(context: Any, text: str) -> NoReturn:
    await context.abort(grpc.StatusCode.NOT_FOUND, text)
    raise AssertionError("abort() raises")
