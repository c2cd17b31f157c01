"""A tiny HTTP/1.1 server for /metrics, /healthz and /readyz. It reads one bounded request a connection and closes it.

It runs in a thread and on an event loop of its own: it answers while the server's loop hangs, which is what a liveness probe wants to
know. Descriptors of its own are kept back, so that it answers when the process has no others left.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import logging
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from kvstore.common.listening import listening_sockets, port_of
from kvstore.common.logs import log_throttled
from kvstore.common.process_status import ProcessStatus

logger = logging.getLogger(__name__)

T = TypeVar("T")

REQUEST_BYTES_MAX = 8192
REQUEST_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 64
# What a request that needs the server's loop waits for it; probes wait 5 s.
LOOP_TIMEOUT_S = 2.0
# Connections that can be taken when no descriptor is left.
SPARE_FILES = 2
_PAUSE_S = 0.05
_BROKEN = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Readiness = Callable[[], tuple[bool, str]]


class HttpEndpoint:
    """`readiness()` answers (ready, why); it and the metrics of `registry` are read on the loop that called start(), those of
    `process` are not."""

    def __init__(
        self, host: str, port: int, registry: CollectorRegistry, readiness: Readiness, process: ProcessStatus
    ) -> None:
        self._host = host
        self._wanted_port = port
        self._registry = registry
        self._readiness = readiness
        self._process = process
        self._sockets: list[socket.socket] = []
        self._port = 0
        self._serving: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._spares: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._served: asyncio.AbstractEventLoop  # whose state is asked for
        self._loop = asyncio.SelectorEventLoop()
        self._thread: threading.Thread | None = None
        self._over = asyncio.Event()

    async def start(self) -> None:
        """OSError names the address."""
        self._served = asyncio.get_running_loop()
        self._sockets = await listening_sockets(self._host, self._wanted_port)
        self._port = port_of(self._sockets)
        self._spares = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) for _ in range(SPARE_FILES)]
        self._thread = threading.Thread(target=self._run, name="status-port", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        assert self._port, "not started"
        return self._port

    async def ended(self) -> None:
        """Until the thread is over by itself: not when stop() ends it."""
        await self._over.wait()

    async def stop(self) -> None:
        """Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(thread.join)

    # ---- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        for listener in self._sockets:
            accepting = self._keep(self._accept(listener))
            accepting.add_done_callback(self._accept_ended)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._end_tasks())
            for listener in self._sockets:
                listener.close()
            for spare in self._spares:
                os.close(spare)
            self._loop.close()
            if self._thread is not None:  # not by stop()
                with contextlib.suppress(RuntimeError):  # the other loop is closed
                    self._served.call_soon_threadsafe(self._over.set)

    def _accept_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._loop.stop()  # nobody would be served

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                try:
                    connection, _ = await self._loop.sock_accept(listener)
                except OSError as error:
                    if error.errno not in _OUT_OF_FILES or not self._spares:
                        raise
                    os.close(self._spares.pop())
                    connection, _ = await self._loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _BROKEN:
                    raise
                # The peer has given up, or there is nothing left to take it with.
                if error.errno in _OUT_OF_FILES:
                    log_throttled(logger, logging.ERROR, "status_port_out_of_files", "", error=str(error))
                self._take_back_spares()
                await asyncio.sleep(_PAUSE_S)
                continue
            if len(self._serving) >= CONNECTIONS_MAX:
                # Strangers that sit there must not keep a probe out, which asks at once.
                next(iter(self._serving)).cancel()
            serving = self._keep(self._serve(connection))
            self._serving[serving] = None
            serving.add_done_callback(lambda task: self._serving.pop(task, None))

    def _take_back_spares(self) -> None:
        with contextlib.suppress(OSError):  # somebody was faster
            while len(self._spares) < SPARE_FILES:
                self._spares.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))

    async def _serve(self, connection: socket.socket) -> None:
        try:
            await asyncio.wait_for(self._exchange(connection), 2 * REQUEST_TIMEOUT_S)
        except (asyncio.TimeoutError, ConnectionError):
            pass  # a peer that can't ask gets no answer
        except Exception as error:
            fields: dict[str, Any] = {"error": repr(error), "exc_info": error}
            log_throttled(logger, logging.ERROR, "status_request_failed", type(error).__name__, **fields)
        finally:
            connection.close()
            self._take_back_spares()

    async def _exchange(self, connection: socket.socket) -> None:
        head = await asyncio.wait_for(self._head(connection), REQUEST_TIMEOUT_S)
        if head:
            await self._send(connection, *await self._answer(head.split(b"\r\n", 1)[0]))

    async def _head(self, connection: socket.socket) -> bytes:
        """Empty: none came, or one that is too long."""
        head = b""
        while b"\r\n\r\n" not in head:
            data = await self._loop.sock_recv(connection, REQUEST_BYTES_MAX)
            head += data
            if not data or len(head) > REQUEST_BYTES_MAX:
                return b""
        return head

    async def _send(self, connection: socket.socket, status: str, content_type: str, body: bytes) -> None:
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        await self._loop.sock_sendall(connection, head.encode() + body)

    # ---- answers -------------------------------------------------------------------------------------------

    async def _answer(self, request_line: bytes) -> tuple[str, str, bytes]:
        parts = request_line.split(b" ")
        if len(parts) != 3 or parts[0] not in (b"GET", b"HEAD"):
            return "405 Method Not Allowed", "text/plain", b"GET only\n"
        path = parts[1].split(b"?", 1)[0]
        if path == b"/metrics":
            return "200 OK", CONTENT_TYPE_LATEST, await self._metrics()
        if path == b"/healthz":
            return self._verdict(*self._process.health())
        if path == b"/readyz":
            return self._verdict(*await self._ready())
        return "404 Not Found", "text/plain", b"/metrics, /healthz and /readyz are here\n"

    @staticmethod
    def _verdict(well: bool, why: str) -> tuple[str, str, bytes]:
        return ("200 OK" if well else "503 Service Unavailable"), "text/plain", why.encode() + b"\n"

    async def _metrics(self) -> bytes:
        """While the loop hangs only those of the process, which say so."""
        own = generate_latest(self._process.registry)
        served = await self._of_served(lambda: generate_latest(self._registry))
        return own + (served or b"")

    async def _ready(self) -> tuple[bool, str]:
        said = await self._of_served(self._readiness)
        return said or (False, f"the event loop has not run for {self._process.watchdog.stalled_s:.1f} s")

    async def _of_served(self, read: Callable[[], T]) -> T | None:
        """What `read` returns on the loop that is served; None when that does not come to it in time."""
        result: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            if result.set_running_or_notify_cancel():
                try:
                    result.set_result(read())
                except Exception as error:
                    result.set_exception(error)

        try:
            self._served.call_soon_threadsafe(run)
        except RuntimeError:  # it is closed
            return None
        try:
            return await asyncio.wait_for(asyncio.wrap_future(result), LOOP_TIMEOUT_S)
        except asyncio.TimeoutError:
            return None
