"""The segment server: pool, data port, control client and status page, started and stopped in the right
order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from kvstore.common.advertised_host import NoAddressToAdvertise, advertised_host
from kvstore.common.capacity import CapacityError
from kvstore.common.config.memory import parse_nodes
from kvstore.common.config.segment import SegmentSettings
from kvstore.common.core_tasks import CoreTasks
from kvstore.common.errors import CoreTaskEnded, KvstoreError
from kvstore.common.file_limit import connections_that_fit, file_limit
from kvstore.common.http_endpoint import HttpEndpoint
from kvstore.common.logs import log_event
from kvstore.common.names import look_up_patiently
from kvstore.common.process_limits import limit_in_the_way
from kvstore.common.process_status import ProcessStatus
from kvstore.common.sizes import parse_size
from kvstore.segment.attach_session import Registration
from kvstore.segment.control_client import ControlClient
from kvstore.segment.disk_place import disk_path_of, had_disk_elsewhere, note_disk
from kvstore.segment.disk_watch import say_disk, watch_disk
from kvstore.segment.errors import SegmentStartError
from kvstore.segment.identity import SegmentIdentity, new_pool_id
from kvstore.segment.limit_watch import watch_limits
from kvstore.segment.metrics import PREFIX, PoolCollector, SegmentCollector
from kvstore.segment.pool_content import say_content
from kvstore.segment.pool_making import PoolMaking
from kvstore.segment.pool_place import (
    KeptPool,
    boot_id,
    capacity_at,
    moved_from,
    note_pool,
    pool_place,
    why_lost,
)
from kvstore.segment.pool_watch import PoolFile, watch_pool
from kvstore.segment.refusal_watch import watch_refusals
from kvstore.segment.retention_watch import watch_retention
from kvstore.segment.socket_path import default_unix_path, keep_unix_path, prepare_unix_path
from kvstore_client._native import DataServer, ObjectCopier, SegmentStore, data_port_options
from kvstore_client.address import Address, is_wildcard
from kvstore_client.tokens import TokenRole

logger = logging.getLogger(__name__)

LEAVE_TIMEOUT_S = 1.5  # SIGTERM ends a process within two seconds, also where its master hangs
BUFFERS_MIN = 64


@dataclass(frozen=True)
class SegmentAddresses:
    """Where a running segment is reached."""

    host: str
    port: int
    advertise_host: str
    unix_path: str
    http_port: int


class SegmentServer:
    """One segment in this process. `start`, then `stop`; both from one event loop, once."""

    def __init__(self, settings: SegmentSettings) -> None:
        self._settings = settings
        self._undo = contextlib.AsyncExitStack()
        self._process = ProcessStatus(PREFIX)
        self._tasks = CoreTasks(self._fail)
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._control: ControlClient | None = None
        self._controlling: asyncio.Task[None] | None = None
        self._store: SegmentStore | None = None
        self._making: PoolMaking | None = None
        self._addresses: SegmentAddresses | None = None
        self.segment_id = b""
        self.pool_id = b""

    @property
    def addresses(self) -> SegmentAddresses:
        assert self._addresses is not None, "the segment has not been started"
        return self._addresses

    @property
    def control(self) -> ControlClient:
        assert self._control is not None, "the segment has not been started"
        return self._control

    @property
    def store(self) -> SegmentStore:
        assert self._store is not None, "the segment has not been started"
        return self._store

    @property
    def _pool_file(self) -> PoolFile | None:
        return self._making.file if self._making is not None else None

    @property
    def kept_pool(self) -> str:
        """The file that keeps the pool, and its memory, when this has stopped; empty when none does."""
        path = self._making.kept_at if self._making is not None else None
        return str(path) if path is not None else ""

    async def start(self) -> None:
        """Binds, allocates, serves, and begins to look for a master; does not wait for one.

        SegmentStartError on failure.
        """
        try:
            await self._start()
        except BaseException:
            await self._undo.aclose()
            if self._making is not None:
                self._making.discard_new()
            raise

    async def wait_attached(self, timeout_s: float) -> bool:
        return await self.control.wait_attached(timeout_s)

    async def failed(self) -> None:
        """Returns never, or raises what ended the control client or another core task: the process should end too."""
        assert self._controlling is not None, "the segment has not been started"
        await asyncio.wait({self._controlling, self._failure}, return_when=asyncio.FIRST_COMPLETED)
        if self._failure.done():
            self._failure.result()
        if self._controlling.cancelled():
            raise CoreTaskEnded("core task control-client ended: it was cancelled")
        self._controlling.result()
        raise CoreTaskEnded("core task control-client ended: it returned")

    def _fail(self, failure: KvstoreError) -> None:
        if not self._failure.done():
            self._failure.set_exception(failure)

    async def stop(self, reason: str = "shutting down") -> None:
        """Says goodbye to the master, closes every connection, frees the pool, or leaves it to the next process. Idempotent."""
        if self._controlling is not None and self._control is not None:
            self._control.leave(reason, keeps_pool=bool(self.kept_pool))
            await asyncio.wait({self._controlling}, timeout=LEAVE_TIMEOUT_S)
        await self._undo.aclose()
        if self._failure.done():
            self._failure.exception()  # whoever did not ask for it in time does not want to know

    async def _start(self) -> None:
        settings = self._settings
        self._process.watchdog.start()
        self._undo.callback(self._process.watchdog.stop)
        connections_max, ungreeted_max = self._connection_limits()
        identity = self._undo.enter_context(SegmentIdentity(settings.data_dir))
        self.segment_id = identity.segment_id
        self.pool_id = new_pool_id()
        unix_path = self._unix_path(identity.segment_id)
        # Before the pool, whose making may take minutes: it says how far that is.
        registry = CollectorRegistry()
        http_port = await self._open_status_page(registry)

        store = await self._open_store(registry)
        self._store = store
        self.pool_id = store.pool_id
        self._undo.push_async_callback(asyncio.to_thread, store.close)
        server = await self._open_data_port(store, unix_path, connections_max, ungreeted_max)
        for transport, why in server.transport_refusals.items():
            log_event(logger, logging.ERROR, "transport_refused", transport=transport, why=why)
        # Stopping joins threads that may be answering a long request: not on the event loop.
        self._undo.push_async_callback(asyncio.to_thread, server.stop)
        self._undo.push_async_callback(self._tasks.stop)
        if unix_path:
            private = self._settings.unix_path == "auto"
            self._tasks.keep(
                lambda: keep_unix_path(Path(unix_path), private, server.remake_unix_socket),
                "keep-unix-socket",
            )
        if (file := self._pool_file) is not None:
            self._tasks.keep(lambda: watch_pool(file, self._fail), "watch-pool")
        self._tasks.keep(lambda: watch_refusals(server.stats, connections_max), "watch-refusals")
        self._tasks.keep(lambda: watch_retention(store.stats), "watch-retention")
        self._tasks.keep(lambda: watch_limits(store.budget_usage), "watch-limits")
        if disk_path := disk_path_of(settings.disk_path):
            self._tasks.keep(lambda: watch_disk(store.stats, disk_path), "watch-disk")

        advertise_host = await _advertised_host(settings)
        control = ControlClient(
            settings.masters,
            Registration(
                segment_id=self.segment_id,
                pool_id=self.pool_id,
                host=advertise_host,
                tcp_port=settings.advertise_port or server.tcp_port,
                unix_path=unix_path,
                capacity_bytes=store.stats()["capacity_bytes"],
                token=next(iter(self._tokens_for(TokenRole.SEGMENT)), ""),
            ),
            store,
            store.stats,
            adopt_cluster=settings.adopt_cluster,
            copier=ObjectCopier(store, token=next(iter(self._tokens_for(TokenRole.ENGINE)), "")),
        )
        registry.register(
            SegmentCollector(store.stats, server.stats, lambda: control_stats(control), store.budget_usage)
        )
        self._control = control
        self._controlling = asyncio.create_task(control.run(), name="control-client")
        self._undo.push_async_callback(_end_task, self._controlling)
        self._addresses = SegmentAddresses(
            settings.host, server.tcp_port, advertise_host, unix_path, http_port
        )
        log_event(
            logger,
            logging.INFO,
            "segment_listening",
            segment_id=self.segment_id,
            pool_id=self.pool_id,
            data=str(Address(settings.host, server.tcp_port)),
            advertised=str(Address(advertise_host, settings.advertise_port or server.tcp_port)),
            unix=unix_path or "off",
            extensions=" ".join(server.extensions) or "none",
            http=str(Address(settings.http_host, http_port)) if http_port >= 0 else "off",
            capacity_bytes=store.stats()["capacity_bytes"],
        )

    def _tokens_for(self, role: TokenRole) -> list[str]:
        """Empty: nobody is asked for one."""
        tokens = self._settings.tokens
        accepted = tokens.accepted(role)
        if tokens and not accepted:
            raise SegmentStartError(
                f"the tokens have none for the role {role.value}: a segment needs one for segments, which it presents to "
                "masters, and one for engines, which it asks for"
            )
        return accepted

    def _unix_path(self, segment_id: bytes) -> str:
        choice = self._settings.unix_path
        if choice in ("off", ""):
            return ""
        path = default_unix_path(segment_id) if choice == "auto" else Path(choice)
        prepare_unix_path(path, private=choice == "auto")
        return str(path)

    async def _open_store(self, registry: CollectorRegistry) -> SegmentStore:
        settings = self._settings
        place = pool_place(settings.pool_path, self.segment_id, settings.huge_pages)
        try:
            capacity_bytes = capacity_at(settings.capacity, settings.data_dir, place.path)
        except CapacityError as error:
            raise SegmentStartError(str(error)) from error
        if limit := limit_in_the_way(capacity_bytes):
            raise SegmentStartError(limit)
        lost = why_lost(settings.data_dir, place.path)
        disk_path = disk_path_of(settings.disk_path)
        tell_all = had_disk_elsewhere(settings.data_dir, disk_path)
        making = self._making = PoolMaking(place, capacity_bytes, moved_from(settings.data_dir, place.path))
        registry.register(PoolCollector(making.stats))
        store = await making.make(
            lambda path, progress: SegmentStore(
                capacity_bytes=capacity_bytes,
                pool_id=self.pool_id,
                eviction_policy=settings.eviction_policy,
                pinned_fraction_max=settings.pinned_fraction_max,
                lock_memory=settings.lock_memory,
                retained_fraction_max=settings.retained_fraction_max,
                retained_namespace_fraction_max=settings.retained_namespace_fraction_max,
                pool_path=path,
                segment_id=self.segment_id,
                empty_pool=settings.empty_pool,
                verify_pool=settings.verify_pool,
                huge_pages=settings.huge_pages,
                numa_nodes=parse_nodes(settings.numa_nodes),
                progress=progress,
                writing_bytes_max=_limit_bytes(settings.writing_max),
                held_bytes_max=_limit_bytes(settings.held_max),
                registered_bytes_max=_limit_bytes(settings.registered_max),
                registered_buffers_max=min(
                    settings.registered_buffers_max, max(BUFFERS_MIN, file_limit() // 16)
                ),
                body_bytes_max=_limit_bytes(settings.request_bodies_max),
                session_share_max=settings.session_share_max,
                disk_path=disk_path,
                disk_capacity_bytes=parse_size(settings.disk_capacity),
                disk_threads=settings.disk_threads,
                disk_admit_uses=settings.disk_admit_uses,
                disk_promote_hits=settings.disk_promote_hits,
                disk_wait_ms=settings.disk_wait_ms,
                disk_slow_ms=settings.disk_slow_ms,
                disk_buffer_bytes_max=parse_size(settings.disk_buffers_max),
                tell_all=tell_all,
            )
        )
        if making.path is not None:
            note_pool(settings.data_dir, KeptPool(making.path, capacity_bytes, boot_id()))
        say_content(store.pool_content(), lost)
        note_disk(settings.data_dir, disk_path)
        if disk_path:
            say_disk(store.stats(), disk_path)
        return store

    def _connection_limits(self) -> tuple[int, int]:
        """(most client connections, most of those on each listener that have not greeted yet), as the descriptors allow."""
        limit = file_limit()
        ungreeted_max = max(8, min(self._settings.ungreeted_max, limit // 16))
        # Of two listeners; they are what is refused at a time, too.
        return connections_that_fit(limit, self._settings.connections_max, 2 * ungreeted_max), ungreeted_max

    async def _open_data_port(
        self, store: SegmentStore, unix_path: str, connections_max: int, ungreeted_max: int
    ) -> DataServer:
        settings = self._settings
        try:
            # The native side looks it up for good: here is the place to wait.
            await look_up_patiently([Address(settings.host, settings.port)], purpose="the data port")
            return DataServer(
                store,
                tcp_host=settings.host,
                tcp_port=settings.port,
                unix_path=unix_path,
                tokens=self._tokens_for(TokenRole.ENGINE),
                connections_max=connections_max,
                ungreeted_max=ungreeted_max,
                stall_timeout_ms=settings.stall_timeout_ms,
                **{name: getattr(settings, name) for name, _, _ in data_port_options()},
            )
        except RuntimeError as error:
            raise SegmentStartError(str(error)) from error
        except OSError as error:
            raise SegmentStartError(
                f"the data port {Address(settings.host, settings.port)} can't be opened ({error}): "
                "stop what listens there, or choose another with --port (0 picks a free one)"
            ) from error

    def _readiness(self) -> tuple[bool, str]:
        if self._control is not None:
            return readiness(self._control)
        return False, self._making.state() if self._making is not None and self._store is None else "starting"

    async def _open_status_page(self, registry: CollectorRegistry) -> int:
        settings = self._settings
        if settings.http_port < 0:
            return -1
        endpoint = HttpEndpoint(
            settings.http_host, settings.http_port, registry, self._readiness, self._process
        )
        try:
            await endpoint.start()
        except OSError as error:
            raise SegmentStartError(
                f"the status page {Address(settings.http_host, settings.http_port)} can't be opened "
                f"({error.strerror}): "
                "choose another port with --http-port (0 picks a free one, -1 turns it off)"
            ) from error
        self._undo.push_async_callback(endpoint.stop)
        self._undo.push_async_callback(self._tasks.stop)
        self._tasks.start(endpoint.ended(), "status-port")
        return endpoint.port


def _limit_bytes(setting: str) -> int:
    """0: by the size of the pool."""
    return 0 if setting == "auto" else parse_size(setting)


def control_stats(control: ControlClient) -> dict[str, int]:
    """What the metrics tell of the attachment to the master."""
    return {
        "attached": int(control.attached),
        "journal_sent_seq": control.pump.sent_seq,
        "journal_durable_seq": control.pump.durable_seq,
        "attaches": control.attaches,
        "heartbeats_sent": control.heartbeats_sent,
        "heartbeats_failed": control.heartbeats.failed,
        "inventories_sent": control.pump.inventories_sent,
        "journal_gaps": control.pump.gaps,
        "entries_refused": control.pump.entries_refused,
        "clusters_refused": control.clusters_refused,
    }


def readiness(control: ControlClient) -> tuple[bool, str]:
    """(ready, why): a segment is of use once a master has it registered."""
    if control.attached:
        return True, "ready"
    return False, f"not attached to a master: {control.complaint or 'connecting'}"


async def _end_task(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _advertised_host(settings: SegmentSettings) -> str:
    """What clients are told. Where that depends on the way to a master, its name is waited for."""
    if settings.advertise_host or not is_wildcard(settings.host):
        return settings.advertise_host or settings.host
    masters = [Address.parse(master) for master in settings.masters]
    found = await look_up_patiently(masters, purpose="the address to advertise", missing_too=True)
    ours = [address for family, address in found if family == socket.AF_INET or settings.host != "0.0.0.0"]
    try:
        return advertised_host(settings.host, str(Address(*ours[0][:2])) if ours else "")
    except NoAddressToAdvertise as error:
        raise SegmentStartError(str(error)) from error
