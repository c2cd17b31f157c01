"""Keeps the segment attached to a master, for ever: finds one, attaches, and begins again when it is lost, with heartbeats to
the last one meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from kvstore.common.backoff import Backoff
from kvstore.common.control_metadata import STANDBY_ROLE, refusing_role
from kvstore.common.file_limit import need_files
from kvstore.common.logs import log_event, log_throttled
from kvstore.segment.attach_session import AttachableStore, AttachSession, Registration
from kvstore.segment.copying import Copier
from kvstore.segment.draining import drained
from kvstore.segment.errors import ClusterChanged, LinkLost, RegistrationRefused
from kvstore.segment.heartbeat import Heartbeat, HeartbeatCounters
from kvstore.segment.journal_pump import JournalProtocolError, JournalPump
from kvstore_client.address import Address

logger = logging.getLogger(__name__)

# A stream that lasts so long has worked; one that breaks at once does not begin the back-off anew.
STABLE_S = 5.0
# A lease that runs out takes seconds, and puts wait for it: masters that stand by are asked often.
STANDBY_DELAY_S_MAX = 0.3

OTHER_CLUSTER_REMEDY = (
    "its pages are kept, and the other masters are tried: correct --masters if this is the wrong master, or bring its records back; "
    "if they are gone for good, restart this segment with --empty-pool (or its `kvstore up`), or start segments with --adopt-cluster"
)

# gRPC opens some for a channel, and ends the process where it can't have them.
CHANNEL_FILES = 8
_CHANNEL_OPTIONS = (
    # Each channel its own TCP connection: heartbeats must not share one with bulk.
    ("grpc.use_local_subchannel_pool", 1),
    # A master that hangs or a link that is cut ends an idle stream within 8 s; masters refuse pings that come
    # more often than every 5 s.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Our own back-off decides when to try again; gRPC's would add its own minute to it.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 8 << 20),
    ("grpc.enable_http_proxy", 0),
)


class ControlClient:
    """Attaches `store` to one of `masters` (host:port) and keeps it so.

    `run` ends only by `leave` or cancellation, and with `adopt_cluster` by ClusterChanged.
    """

    def __init__(
        self,
        masters: Sequence[str],
        registration: Registration,
        store: AttachableStore,
        stats: Callable[[], dict[str, int]],
        *,
        backoff: Backoff | None = None,
        pump: JournalPump | None = None,
        adopt_cluster: bool = False,
        copier: Copier | None = None,
    ) -> None:
        """`adopt_cluster`: a master of another cluster than that of the pool's pages ends `run`; otherwise it is passed over. `copier`:
        what carries out orders to copy from other segments; None: none are taken."""
        if not masters:
            raise ValueError("masters is empty: a segment needs at least one control address")
        self._masters = list(masters)
        self._registration = registration
        self._store = store
        self._stats = stats
        self._backoff = backoff or Backoff()
        self.pump = pump or JournalPump(store)
        self._session: AttachSession | None = None
        self._leaving = asyncio.Event()
        self._streaming: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._heartbeat_interval_s = 1.0
        self._adopt_cluster = adopt_cluster
        self._copier = copier
        self._attached_at = 0.0
        self._attached = asyncio.Event()
        self._complaint = ""
        self._cluster_id = store.cluster_id  # empty: the pages belong to none yet
        self.master = ""
        self.attaches = 0
        self.clusters_refused = 0
        self.heartbeats = HeartbeatCounters()

    @property
    def attached(self) -> bool:
        """True while a master has us registered on a live stream."""
        return self._attached.is_set()

    @property
    def complaint(self) -> str:
        """Why the last attempt to attach failed; empty while attached."""
        return self._complaint

    @property
    def heartbeats_sent(self) -> int:
        return self.heartbeats.sent + (self._session.heartbeats_sent if self._session is not None else 0)

    async def wait_attached(self, timeout_s: float) -> bool:
        """Waits until attached; False after `timeout_s`."""
        try:
            await asyncio.wait_for(self._attached.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True

    def leave(self, reason: str, keeps_pool: bool = False) -> None:
        """Tells the master goodbye, if one is attached, and ends `run`. `keeps_pool`: another process is to go on with it."""
        self._leaving.set()
        if self._session is not None and self.attached:
            self._session.leave(reason, keeps_pool)
        elif self._streaming is not None:
            self._streaming.cancel()

    async def drain(self, timeout_s: float, give_up: asyncio.Event) -> str:
        """Has the master move this segment's pages to others. Why it ended: drained, no room, no target, timeout, given up,
        or unanswered (no master is there, or it is of an earlier release)."""
        return await drained(lambda: self._session if self.attached else None, timeout_s, give_up)

    async def run(self) -> None:
        """Goes round the masters until `leave`.

        ClusterChanged is all that it raises for what a master does, and that with `adopt_cluster` alone.
        """
        try:
            await self._run()
        finally:
            await self._stop_beating()

    async def _run(self) -> None:
        turn = 0
        while not self._leaving.is_set():
            master = self._masters[turn % len(self._masters)]
            turn += 1
            try:
                await self._attach(master)
                reason = kind = "the stream ended"
            except (
                grpc.RpcError,
                OSError,
                asyncio.TimeoutError,
                RegistrationRefused,
                JournalProtocolError,
                LinkLost,
                ClusterChanged,
            ) as error:
                if isinstance(error, ClusterChanged):
                    self._of_another_cluster(master, error)
                reason, kind = _describe(error), _kind(error)
                if _from_standby(error):
                    self._backoff.limit(STANDBY_DELAY_S_MAX)
            finally:
                self._detached()
            if self._leaving.is_set():
                return
            if kind != ClusterChanged.__name__:
                key = f"{master} {kind}"
                log_throttled(logger, logging.WARNING, "not_attached", key, master=master, reason=reason)
            self._complaint = reason
            await self._pause()

    def _of_another_cluster(self, master: str, error: ClusterChanged) -> None:
        self.clusters_refused += 1
        if self._adopt_cluster:
            raise error
        log_throttled(
            logger, logging.ERROR, "another_cluster", master, master=master, reason=_describe(error)
        )

    async def _attach(self, master: str) -> None:
        need_files(CHANNEL_FILES)
        async with grpc.aio.insecure_channel(master, options=_CHANNEL_OPTIONS) as channel:
            session = AttachSession(
                channel,
                Address.parse(master),
                self._registration,
                self._store,
                self.pump,
                lambda registered: self._on_linked(master, registered),
                self._cluster_id,
                self.heartbeats,
                self._copier,
            )
            streaming = asyncio.create_task(session.run(), name="attach")
            self._session, self._streaming = session, streaming
            try:
                await streaming
            except asyncio.CancelledError:
                if not self._leaving.is_set():
                    raise
            finally:
                self._session = self._streaming = None
                streaming.cancel()
                await asyncio.gather(streaming, return_exceptions=True)

    async def _beat(self, master: str, interval_s: float) -> None:
        while True:
            try:
                need_files(CHANNEL_FILES)
                break
            except OSError:  # whoever looks for a master says so
                await asyncio.sleep(interval_s)
        async with grpc.aio.insecure_channel(master, options=_CHANNEL_OPTIONS) as channel:
            own = self._registration
            beat = Heartbeat(channel, own.segment_id, own.pool_id, self._stats, self.heartbeats, own.token)
            await beat.run(interval_s)

    def _start_beating(self) -> None:
        """To the last master, until one has linked us."""
        beating = asyncio.create_task(self._beat(self.master, self._heartbeat_interval_s), name="heartbeat")
        beating.add_done_callback(_log_failure)
        self._beating = beating

    async def _stop_beating(self) -> None:
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    def _on_linked(self, master: str, registered: Any) -> None:
        self.master = master
        self._cluster_id = registered.cluster_id
        self.attaches += 1
        self._complaint = ""
        self._attached_at = time.monotonic()
        if self._beating is not None:
            self._beating.cancel()
        self._heartbeat_interval_s = max(registered.heartbeat_interval_ms, 50) / 1000
        self._attached.set()
        log_event(
            logger,
            logging.INFO,
            "attached",
            master=master,
            segment_index=registered.segment_index,
            durable_seq=registered.durable_seq,
            journal=self.pump.state.name.lower(),
        )

    def _detached(self) -> None:
        if self._attached.is_set():
            self._attached.clear()
            if time.monotonic() - self._attached_at >= STABLE_S:
                self._backoff.reset()
            if not self._leaving.is_set():
                self._start_beating()
            log_event(logger, logging.WARNING, "master_lost", master=self.master)

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._leaving.wait(), self._backoff.next_delay_s())
        except asyncio.TimeoutError:
            return


def _log_failure(beating: asyncio.Task[None]) -> None:
    if not beating.cancelled() and beating.exception() is not None:
        logger.error("heartbeat_ended", exc_info=beating.exception())


def _from_standby(error: BaseException) -> bool:
    """Whether a master refused because it does not lead: one that does will be there soon."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return False
    return refusing_role(error.trailing_metadata()) == STANDBY_ROLE


def _kind(error: BaseException) -> str:
    """What does not change with the words: of the same kind one line a minute is enough."""
    if isinstance(error, LinkLost):
        return f"link {error.kind}"
    return error.code().name if isinstance(error, grpc.aio.AioRpcError) else type(error).__name__


def _describe(error: BaseException) -> str:
    if isinstance(error, ClusterChanged):
        return f"{error}: {OTHER_CLUSTER_REMEDY}"
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
