"""A tiny HTTP/1.1 server for /metrics, /healthz and /readyz. It reads one bounded request a connection and
closes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from kvstore.common.listening import listening_sockets, port_of

REQUEST_BYTES_MAX = 8192
REQUEST_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 64

Readiness = Callable[[], tuple[bool, str]]


class HttpEndpoint:
    """`readiness()` answers (ready, why). Runs on the event loop that called start()."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry, readiness: Readiness) -> None:
        self._host = host
        self._wanted_port = port
        self._registry = registry
        self._readiness = readiness
        self._servers: list[asyncio.Server] = []
        self._connections = 0

    async def start(self) -> None:
        """OSError names the address."""
        for sock in await listening_sockets(self._host, self._wanted_port):
            self._servers.append(await asyncio.start_server(self._serve, sock=sock, limit=REQUEST_BYTES_MAX))

    @property
    def port(self) -> int:
        assert self._servers, "not started"
        return port_of(self._servers[0].sockets)

    async def stop(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        for server in servers:
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._connections >= CONNECTIONS_MAX:
            writer.close()
            return
        self._connections += 1
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_TIMEOUT_S)
            status, content_type, body = self._answer(head.split(b"\r\n", 1)[0])
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
                "Connection: close\r\n\r\n".encode()
                + body
            )
            await asyncio.wait_for(writer.drain(), REQUEST_TIMEOUT_S)
        except (
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            asyncio.TimeoutError,
            ConnectionError,
        ):
            pass  # a peer that can't ask gets no answer
        finally:
            self._connections -= 1
            writer.close()

    def _answer(self, request_line: bytes) -> tuple[str, str, bytes]:
        parts = request_line.split(b" ")
        if len(parts) != 3 or parts[0] not in (b"GET", b"HEAD"):
            return "405 Method Not Allowed", "text/plain", b"GET only\n"
        path = parts[1].split(b"?", 1)[0]
        if path == b"/metrics":
            return "200 OK", CONTENT_TYPE_LATEST, generate_latest(self._registry)
        if path == b"/healthz":
            return "200 OK", "text/plain", b"ok\n"
        if path == b"/readyz":
            ready, why = self._readiness()
            return ("200 OK" if ready else "503 Service Unavailable"), "text/plain", why.encode() + b"\n"
        return "404 Not Found", "text/plain", b"/metrics, /healthz and /readyz are here\n"
