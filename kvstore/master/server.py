"""The master as one process: metadata store, directory, and its three ports."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import sys
import time
from collections.abc import Callable

from kvstore import __version__
from kvstore.common.advertised_host import NoAddressToAdvertise, advertised_host
from kvstore.common.config.master import MasterSettings
from kvstore.common.core_tasks import CoreTasks
from kvstore.common.errors import FencedError, KvstoreError, LimitTooLow
from kvstore.common.file_limit import (
    connections_that_fit,
    control_connections_max,
    file_limit,
    links_max,
    raise_file_limit,
)
from kvstore.common.http_endpoint import HttpEndpoint
from kvstore.common.logs import log_event
from kvstore.common.process_limits import limit_in_the_way
from kvstore.common.process_status import ProcessStatus
from kvstore.common.sizes import parse_size
from kvstore.common.starting import finish_unless
from kvstore.master.clear_watch import ClearWatch
from kvstore.master.directory import Directory
from kvstore.master.ha.arrival import open_when_there
from kvstore.master.ha.attendance_keeper import AttendanceKeeper
from kvstore.master.ha.replica import Replica
from kvstore.master.metadata.registry import metadata_store, scheme_of
from kvstore.master.metadata.replicated import ReplicatedStore
from kvstore.master.metadata.store import Fence
from kvstore.master.metrics import PREFIX, MasterMetrics
from kvstore.master.ports.admin_service import AboutMaster, AdminService
from kvstore.master.ports.control_port import ControlPort, TokenInterceptor
from kvstore.master.ports.control_service import ControlService
from kvstore.master.ports.directory_port import REFUSED_AT_A_TIME, DirectoryPort, PortOptions
from kvstore.master.ports.segment_link import LinkTable
from kvstore.master.recovery import corruption_reporter, load, take_over
from kvstore.master.roles import Roles
from kvstore.master.state.directory_state import Recovered, StateLimits
from kvstore.master.state.log_compaction import LogLimits
from kvstore.master.state.membership import MembershipLimits
from kvstore.master.state.placement import POLICIES
from kvstore_client.address import Address
from kvstore_client.tokens import TokenRole

logger = logging.getLogger(__name__)

# The commit thread wants the GIL for microseconds; the default of 5 ms would be added to requests that wait
# for it.
SWITCH_INTERVAL_S = 0.0005
# A leader that has made no commit for so long, though some wait, is not ready.
COMMIT_STALLED_S = 5.0


class MasterServer:
    """start() and stop() on one event loop. After start() the port properties say where it listens."""

    def __init__(self, settings: MasterSettings) -> None:
        self._settings = settings
        self.metrics = MasterMetrics()
        self._store = metadata_store(settings.metadata)
        self._process = ProcessStatus(PREFIX)
        self._tasks = CoreTasks(self._fail)
        self._http = HttpEndpoint(
            settings.host, settings.http_port, self.metrics.registry, self._readiness, self._process
        )
        self._roles = Roles()
        self._replica: Replica | None = None
        self._port: DirectoryPort | None = None
        self._control: ControlPort | None = None
        self._advertised_host = ""
        self._not_ready = "starting"
        self._started_at = time.monotonic()
        self.failed = asyncio.Event()
        self._failure: KvstoreError | None = None

    @property
    def directory(self) -> Directory:
        """Of a master that leads."""
        assert self._roles.directory is not None, "this master does not lead"
        return self._roles.directory

    @property
    def directory_port(self) -> int:
        assert self._port is not None, "not started"
        return self._port.port

    @property
    def control_port(self) -> int:
        assert self._control is not None, "not started"
        return self._control.port

    def _control_address(self) -> str:
        """Where the other masters, segments and tools reach this one."""
        return str(Address(self._advertised_host, self.control_port))

    @property
    def http_port(self) -> int:
        return self._http.port

    async def start(self) -> None:
        """Serves when it returns. Raises StoreError, or OSError that names the address; then everything is
        closed again."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        settings = self._settings
        self._advertised_host = settings.advertise_host or _own_address(settings.host)
        self._process.watchdog.start()
        await self._http.start()
        self._tasks.start(self._http.ended(), "status-port")
        if isinstance(self._store, ReplicatedStore):
            # The ports first: who leads announces where it is reached. Until there is a directory they refuse.
            await self._open_ports()
            await open_when_there(self._store, self._awaits_store)
            self._not_ready = "loading the directory"
            self._store.announce(self._control_address())
            attendance = self._store.attendance
            keeper = None
            if attendance is not None:
                keeper = AttendanceKeeper(
                    attendance, self._roles, self._control_address(), settings.standby_reads_s
                )
            self._replica = Replica(
                self._store,
                self._roles,
                self.metrics,
                self._new_directory,
                self._fail,
                settings.tokens.to_present(TokenRole.SEGMENT),
                keeper,
            )
            await self._replica.start()
        else:
            self._not_ready = "loading the directory"
            await self._store.open()
            # Before the first write: what a later release has left stays as it is.
            replay = await load(self._store, corruption_reporter(self.metrics))
            fence = await self._store.acquire()
            recovered = await take_over(replay, self._store, fence)
            directory = self._new_directory(fence, recovered)
            directory.start()
            self._roles.lead(directory)
            self.metrics.is_leader.set(1)
            await self._open_ports()
        self._not_ready = ""
        log_event(
            logger,
            logging.INFO,
            "master_ready",
            version=__version__,
            host=settings.host,
            directory_port=self.directory_port,
            control_port=self.control_port,
            http_port=self.http_port,
            metadata=scheme_of(settings.metadata),
            entries=self._roles.backend.index.entry_count,
        )

    def _new_directory(self, fence: Fence, recovered: Recovered) -> Directory:
        settings = self._settings
        directory = Directory(
            self._store,
            fence,
            recovered,
            _limits(settings),
            POLICIES[settings.placement_policy](random.Random()),
            self.metrics,
            run_bytes=settings.placement_run_bytes,
            copy_bytes_per_s=parse_size(settings.copy_rate),
            on_fenced=self._fenced,
            on_failed=self._fail,
        )
        self.metrics.watch(directory.state)
        return directory

    async def _open_ports(self) -> None:
        settings = self._settings
        links = LinkTable(self.metrics, lambda: settings.advertise_directory_port or self.directory_port)
        control = ControlService(
            self._roles, self.metrics, links, heartbeat_interval_ms=settings.heartbeat_interval_ms
        )
        about = AboutMaster(
            metadata_kind=scheme_of(settings.metadata),
            started_at=self._started_at,
            control_address=self._control_address,
            directory_port=lambda: self._port.port if self._port is not None else 0,
            readiness=self._readiness,
            limits=self._limits_reached,
        )
        attendance = self._store.attendance if isinstance(self._store, ReplicatedStore) else None
        admin = AdminService(self._roles, about, ClearWatch(self._control_address, attendance))
        auth = TokenInterceptor(settings.tokens, self.metrics)
        limit = file_limit()
        self._control = ControlPort(control, admin, auth, control_connections_max(limit))
        connections_max = connections_that_fit(limit, settings.connections_max, REFUSED_AT_A_TIME)
        port_options = PortOptions(settings.tokens, connections_max, links_max(limit))
        self._port = DirectoryPort(self._roles, self.metrics, port_options, links)
        # Before the control port, which tells segments where to make their links.
        await self._port.start(settings.host, settings.directory_port)
        await self._control.start(settings.host, settings.control_port)

    async def stop(self) -> None:
        """Stops taking requests, commits what was accepted, gives up the leadership, closes the store. Idempotent."""
        self._not_ready = "stopping"
        if self._port is not None:
            await self._port.stop()
        if self._control is not None:
            await self._control.stop()
        if self._replica is not None:
            await self._replica.stop()
        elif self._roles.directory is not None:
            await self._roles.directory.stop()
        await self._store.close()
        await self._tasks.stop()
        await self._http.stop()
        self._process.watchdog.stop()

    def _readiness(self) -> tuple[bool, str]:
        if self._not_ready:
            return False, self._not_ready
        directory = self._roles.directory
        if directory is not None and (stalled_s := directory.commit_stalled_s) >= COMMIT_STALLED_S:
            why = directory.store_view.commit_error or "the metadata store does not answer"
            return False, f"no commit for {stalled_s:.0f} s, puts wait and reads are served: {why}"
        return self._replica.readiness if self._replica is not None else (True, "ready")

    def _limits_reached(self) -> list[str]:
        """Those of this process."""
        return [*self._process.problems(), *(self._port.problems() if self._port is not None else [])]

    def _awaits_store(self, why: str) -> None:
        self._not_ready = f"waiting for the metadata store: {why}"

    def _fenced(self, error: FencedError) -> None:
        self.metrics.fenced_writes.inc()
        log_event(logger, logging.CRITICAL, "fenced", error=str(error))
        if self._replica is None:
            # A store of its own, and yet somebody else writes.
            self._fail(FencedError("another master has taken over"))

    def _fail(self, failure: KvstoreError) -> None:
        """Nothing that this process could go on with."""
        self._not_ready = str(failure)
        self._failure = failure
        self.failed.set()

    def check(self) -> None:
        """Raises what has ended this master, once `failed` is set."""
        if self._failure is not None:
            raise self._failure


def _own_address(host: str) -> str:
    try:
        return advertised_host(host)
    except NoAddressToAdvertise:
        # Nobody elsewhere reaches a machine that has no network, and here loopback does.
        return "127.0.0.1" if host == "0.0.0.0" else "::1"


def _limits(settings: MasterSettings) -> StateLimits:
    return StateLimits(
        membership=MembershipLimits(
            settings.grace_s,
            settings.heartbeat_timeout_s,
            streamless_timeout_s=min(
                2.5 * settings.heartbeat_interval_ms / 1000, settings.heartbeat_timeout_s
            ),
            evidence_s=max(2.0, 2 * settings.heartbeat_interval_ms / 1000),
            segments_max=settings.segments_max,
        ),
        log=LogLimits(settings.compaction_factor, settings.compaction_floor_entries),
        namespaces_max=settings.namespaces_max,
        namespace_unused_s=settings.namespace_unused_s,
        recovery_s=settings.recovery_s,
    )


async def run(settings: MasterSettings, on_listening: Callable[[MasterServer], None] | None = None) -> None:
    """Runs a master until SIGTERM or SIGINT. Raises KvstoreError when it can't go on.

    `on_listening` is called once, when it serves.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    raise_file_limit()
    if limit := limit_in_the_way():
        raise LimitTooLow(limit)
    server = MasterServer(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if not await finish_unless(stop, server.start()):
        log_event(logger, logging.INFO, "master_stopped")
        return
    if on_listening is not None:
        on_listening(server)
    waits = [asyncio.create_task(stop.wait()), asyncio.create_task(server.failed.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await wait
        await server.stop()
        log_event(logger, logging.INFO, "master_stopped")
    server.check()
