"""The small HTTP server behind /metrics, /healthz and /readyz: GET only, one request a connection,
bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

REQUEST_BYTES_MAX = 16_384
REQUEST_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 64

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


@dataclass(frozen=True)
class Response:
    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Handler = Callable[[], Awaitable[Response]]


class HttpEndpoint:
    """Serves `routes` (path -> handler) on one address."""

    def __init__(self, routes: dict[str, Handler]) -> None:
        self._routes = routes
        self._server: asyncio.Server | None = None
        self._connections = 0

    async def start(self, host: str, port: int) -> int:
        """Binds; returns the port. OSError when the address can't be had."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections > CONNECTIONS_MAX:
                response = Response(503, b"too many connections\n")
            else:
                response = await self._answer(reader)
            head = (
                f"HTTP/1.1 {response.status} {_REASONS[response.status]}\r\n"
                f"Content-Type: {response.content_type}\r\nContent-Length: {len(response.body)}\r\n"
                "Connection: close\r\n\r\n"
            )
            writer.write(head.encode() + response.body)
            await asyncio.wait_for(writer.drain(), REQUEST_TIMEOUT_S)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            pass  # the peer went away or sent nothing: nobody is left to answer
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> Response:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_TIMEOUT_S)
        except asyncio.LimitOverrunError:
            return Response(400, b"request head too long\n")
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3:
            return Response(400, b"not an HTTP request\n")
        method, target, _ = parts
        if method != "GET":
            return Response(405, b"GET only\n")
        handler = self._routes.get(target.split("?", 1)[0])
        if handler is None:
            return Response(404, ("one of: " + " ".join(sorted(self._routes)) + "\n").encode())
        return await handler()
