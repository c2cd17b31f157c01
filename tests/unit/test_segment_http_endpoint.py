from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kvstore.segment.http_endpoint import REQUEST_BYTES_MAX, HttpEndpoint, Response


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def page() -> Response:
        return Response(200, b"fine\n")

    endpoint = HttpEndpoint({"/page": page})
    yield await endpoint.start("127.0.0.1", 0)
    await endpoint.stop()


async def exchange(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


async def test_a_route_answers_with_its_page(port: int) -> None:
    answer = await exchange(port, b"GET /page?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nfine\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /page HTTP/1.1\r\n\r\n", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /page HTTP/1.1\r\nX: " + b"y" * (2 * REQUEST_BYTES_MAX) + b"\r\n\r\n", b"400"),
    ],
)
async def test_anything_else_is_refused(port: int, request_bytes: bytes, status: bytes) -> None:
    assert (await exchange(port, request_bytes)).split(b" ")[1] == status


async def test_a_peer_that_leaves_early_does_no_harm(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /pa")
    writer.close()
    await writer.wait_closed()
    assert b"200 OK" in await exchange(port, b"GET /page HTTP/1.1\r\n\r\n")
