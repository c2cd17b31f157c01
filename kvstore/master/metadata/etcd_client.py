"""A client of etcd's v3 API on grpc.aio: several endpoints, deadlines on everything, leases, transactions, paged reads.

Calls go to one endpoint until it fails, then to the next. Every call is one that may be sent again: reads, lease renewals, and
transactions that recognise their own first attempt (kvstore.master.metadata.etcd). `etcd_watch` holds the watch.

One event loop; close() when done.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio

from kvstore.common.errors import StoreError
from kvstore.etcd import etcd_pb2 as pb
from kvstore.master.metadata.replicated import RevisionGoneError

ATTEMPT_TIMEOUT_S = 1.0  # of one endpoint, so that a hung one leaves time for the others
ATTEMPT_TIMEOUT_S_MIN = 0.05
RETRY_DELAY_S = 0.05
RANGE_LIMIT_START = 32
RANGE_LIMIT_MAX = 256
RANGE_PAGE_BYTES = 1 << 20
MESSAGE_BYTES_MAX = 64 << 20
# A member that has lost its leader refuses instead of keeping the stream silent.
REQUIRE_LEADER = (("hasleader", "true"),)
NOSPACE_ALARM = 1
COMPACT_TIMEOUT_S = 60.0

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", 4 << 20),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
)
_RETRIED = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
)
_T = TypeVar("_T")


class NoSpaceError(StoreError):
    """etcd's size quota is used up."""


class _TooLargeError(StoreError):
    """A reply is over MESSAGE_BYTES_MAX."""


class EtcdClient:
    def __init__(self, endpoints: Sequence[str], timeout_s: float = 5.0) -> None:
        """`timeout_s`: of a call, all endpoints together, where it is given no other."""
        self._endpoints = list(endpoints)
        self._timeout_s = timeout_s
        self._channels: list[grpc.aio.Channel | None] = [None] * len(self._endpoints)
        self._current = 0
        self._methods: dict[tuple[int, str], Any] = {}

    async def close(self) -> None:
        """Idempotent."""
        channels, self._channels = self._channels, [None] * len(self._endpoints)
        self._methods.clear()
        for channel in channels:
            if channel is not None:
                await channel.close()

    # ---- key-value -----------------------------------------------------------------------------------------

    async def get(self, key: bytes, revision: int = 0) -> tuple[Any | None, int]:
        """(key-value or None, revision of the store)"""
        reply = await self._unary(
            "/etcdserverpb.KV/Range", pb.RangeRequest(key=key, revision=revision), pb.RangeResponse
        )
        return (reply.kvs[0] if reply.kvs else None), reply.header.revision

    async def pages(self, start: bytes, end: bytes, revision: int = 0) -> AsyncIterator[list[Any]]:
        """The key-values of [start, end) in key order, in pages of about RANGE_PAGE_BYTES, all of one revision,
        or, for 0, each as it is when it is read. RevisionGoneError when the revision is dropped meanwhile."""
        limit = RANGE_LIMIT_START
        while True:
            request = pb.RangeRequest(key=start, range_end=end, limit=limit, revision=revision)
            try:
                reply = await self._unary("/etcdserverpb.KV/Range", request, pb.RangeResponse)
            except _TooLargeError:
                if limit == 1:
                    raise
                limit = max(1, limit // 4)
                continue
            size = 0
            page: list[Any] = []
            for kv in reply.kvs:
                page.append(kv)
                size += len(kv.key) + len(kv.value)
                if size >= RANGE_PAGE_BYTES:
                    yield page
                    page, size = [], 0
            if page:
                yield page
            if not reply.more:
                return
            start = reply.kvs[-1].key + b"\x00"
            mean = 1 + sum(len(kv.key) + len(kv.value) for kv in reply.kvs) // len(reply.kvs)
            limit = max(1, min(RANGE_LIMIT_MAX, RANGE_PAGE_BYTES // mean))

    async def txn(self, request: Any, timeout_s: float | None = None) -> Any:
        """A pb.TxnRequest. It may be sent several times: it must recognise what an earlier attempt has done."""
        return await self._unary("/etcdserverpb.KV/Txn", request, pb.TxnResponse, timeout_s)

    async def delete(self, key: bytes) -> bool:
        """Whether it was there. Taken by an etcd that is full, which a transaction is not. False also when the answer to an earlier
        attempt was lost."""
        request = pb.DeleteRangeRequest(key=key)
        reply = await self._unary("/etcdserverpb.KV/DeleteRange", request, pb.DeleteRangeResponse)
        return bool(reply.deleted)

    async def compact(self, revision: int) -> None:
        """Drops revisions before `revision`; their space is free on return."""
        with contextlib.suppress(RevisionGoneError):  # somebody else did
            await self._unary(
                "/etcdserverpb.KV/Compact",
                pb.CompactionRequest(revision=revision, physical=True),
                pb.CompactionResponse,
                COMPACT_TIMEOUT_S,
            )

    # ---- leases --------------------------------------------------------------------------------------------

    async def lease_grant(self, ttl_s: float) -> tuple[int, float]:
        """(lease id, time to live granted in seconds, which may be longer)"""
        seconds = max(1, round(ttl_s))
        reply = await self._unary(
            "/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest(TTL=seconds), pb.LeaseGrantResponse
        )
        if reply.error:
            raise StoreError(f"etcd grants no lease: {reply.error}")
        return reply.ID, float(reply.TTL)

    async def lease_keep_alive(self, lease_id: int, timeout_s: float) -> float:
        """The seconds it has from now; 0 when it has ended."""
        request = pb.LeaseKeepAliveRequest(ID=lease_id)

        async def attempt(at: int, attempt_s: float) -> float:
            call = self._stream("/etcdserverpb.Lease/LeaseKeepAlive", at, attempt_s)
            try:
                await call.write(request)
                reply = await call.read()
                if reply is grpc.aio.EOF:
                    raise _RetryError("etcd closed the lease's stream without an answer")
                return float(reply.TTL)
            finally:
                call.cancel()

        return await self._attempts("lease keep-alive", timeout_s, attempt)

    async def lease_revoke(self, lease_id: int, timeout_s: float | None = None) -> None:
        with contextlib.suppress(_NotFoundError):  # it has ended
            await self._unary(
                "/etcdserverpb.Lease/LeaseRevoke",
                pb.LeaseRevokeRequest(ID=lease_id),
                pb.LeaseRevokeResponse,
                timeout_s,
            )

    # ---- maintenance ---------------------------------------------------------------------------------------

    async def status(self, timeout_s: float | None = None) -> Any:
        """pb.StatusResponse of one member."""
        return await self._unary(
            "/etcdserverpb.Maintenance/Status", pb.StatusRequest(), pb.StatusResponse, timeout_s
        )

    async def nospace_alarms(self) -> list[int]:
        """The members that have raised it."""
        reply = await self._unary("/etcdserverpb.Maintenance/Alarm", pb.AlarmRequest(), pb.AlarmResponse)
        return [each.member_id for each in reply.alarms if each.alarm == NOSPACE_ALARM]

    async def disarm(self, member_id: int) -> None:
        """Ends a member's NOSPACE alarm; it is raised again by the next write that finds no space."""
        request = pb.AlarmRequest(action=pb.AlarmRequest.DEACTIVATE, member_id=member_id, alarm=NOSPACE_ALARM)
        await self._unary("/etcdserverpb.Maintenance/Alarm", request, pb.AlarmResponse)

    async def voters(self) -> set[int]:
        """The members of the cluster that vote, whether they run or not."""
        reply = await self._unary(
            "/etcdserverpb.Cluster/MemberList", pb.MemberListRequest(), pb.MemberListResponse
        )
        return {member.id for member in reply.members if not member.is_learner}

    async def status_of(self, endpoint: int) -> Any:
        """pb.StatusResponse of the member at that endpoint, and of no other. StoreError when it does not answer."""
        return await self._at(
            endpoint, "/etcdserverpb.Maintenance/Status", pb.StatusRequest(), pb.StatusResponse, 1.0
        )

    async def defragment(self, endpoint: int, timeout_s: float) -> None:
        """Of the member at that endpoint, which answers nothing meanwhile: other calls go elsewhere, where there is another."""
        self.failed(endpoint)
        await self._at(
            endpoint,
            "/etcdserverpb.Maintenance/Defragment",
            pb.DefragmentRequest(),
            pb.DefragmentResponse,
            timeout_s,
        )

    # ---- endpoints -----------------------------------------------------------------------------------------

    @property
    def endpoints(self) -> Sequence[str]:
        return self._endpoints

    def open_watch(self) -> tuple[int, Any]:
        """(endpoint, a fresh bidirectional watch stream to it). For etcd_watch, which tells `failed` about it."""
        return self._current, self._stream("/etcdserverpb.Watch/Watch", self._current, None)

    def failed(self, endpoint: int) -> None:
        """Calls go to another endpoint from now on, unless they do already."""
        if endpoint == self._current:
            self._current = (endpoint + 1) % len(self._endpoints)

    async def _at(self, endpoint: int, method: str, request: Any, answer: Any, timeout_s: float) -> Any:
        try:
            return await self._method(method, endpoint, answer)(request, timeout=timeout_s)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
            what = method.rpartition("/")[2]
            raise _as_store_error(what, self._endpoints[endpoint], error) from error

    async def _unary(self, method: str, request: Any, answer: Any, timeout_s: float | None = None) -> Any:
        async def attempt(at: int, attempt_s: float) -> Any:
            call = self._method(method, at, answer)
            return await call(request, timeout=attempt_s)

        return await self._attempts(method.rpartition("/")[2], timeout_s or self._timeout_s, attempt)

    async def _attempts(
        self, what: str, timeout_s: float, attempt: Callable[[int, float], Awaitable[_T]]
    ) -> _T:
        """One endpoint after the other, round and round until the time is up."""
        ends_at = time.monotonic() + timeout_s
        tries = 0
        while True:
            at = self._current
            left_s = ends_at - time.monotonic()
            share_s = min(ATTEMPT_TIMEOUT_S, left_s) if len(self._endpoints) > 1 else left_s
            try:
                return await attempt(at, max(share_s, ATTEMPT_TIMEOUT_S_MIN))
            except _RetryError as error:
                failure: StoreError = error
            except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
                failure = _as_store_error(what, self._endpoints[at], error)
                if not isinstance(failure, _RetryError):
                    raise failure from error
            tries += 1
            self.failed(at)
            if time.monotonic() + RETRY_DELAY_S >= ends_at:
                raise StoreError(f"{failure} ({tries} attempts in {timeout_s:g} s)")
            if tries % len(self._endpoints) == 0:
                await asyncio.sleep(RETRY_DELAY_S)

    def _channel(self, at: int) -> grpc.aio.Channel:
        channel = self._channels[at]
        if channel is None:
            channel = grpc.aio.insecure_channel(self._endpoints[at], options=_CHANNEL_OPTIONS)
            self._channels[at] = channel
        return channel

    def _method(self, method: str, at: int, answer: Any) -> Any:
        call = self._methods.get((at, method))
        if call is None:
            call = self._channel(at).unary_unary(
                method,
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=answer.FromString,
            )
            self._methods[at, method] = call
        return call

    def _stream(self, method: str, at: int, timeout_s: float | None) -> Any:
        answer = pb.WatchResponse if method.endswith("/Watch") else pb.LeaseKeepAliveResponse
        call = self._channel(at).stream_stream(
            method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return call(timeout=timeout_s, metadata=REQUIRE_LEADER)


class _RetryError(StoreError):
    """Another endpoint, or a later moment, may do better."""


class _NotFoundError(StoreError):
    """No such lease."""


def _as_store_error(what: str, endpoint: str, error: Exception) -> StoreError:
    if not isinstance(error, grpc.aio.AioRpcError):
        return _RetryError(f"etcd {what} at {endpoint}: {error}")
    code, details = error.code(), error.details() or ""
    text = f"etcd {what} at {endpoint}: {code.name}: {details}"
    if code in _RETRIED:
        return _RetryError(text)
    if code is grpc.StatusCode.NOT_FOUND:
        return _NotFoundError(text)
    if code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in details:
        return RevisionGoneError(text)
    if code is grpc.StatusCode.OUT_OF_RANGE:
        return _RetryError(text)  # "a future revision": a member that lags behind
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        if "database space exceeded" in details:
            return NoSpaceError(f"{text}: compact and defragment etcd, then disarm its alarm (docs/etcd.md)")
        if "too many requests" in details:
            return _RetryError(text)
        return _TooLargeError(text)
    return StoreError(text)
