"""Looks at a store from a client's side: greets every data port and directory port at the address that clients are told."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvstore_client.address import Address
from kvstore_client.protocol import (
    ANY_PEER,
    HEADER_BYTES,
    Header,
    HelloRequest,
    Op,
    Role,
    Status,
    WireError,
    decode_reply,
    request_frame,
)

TIMEOUT_S = 1.0
AT_A_TIME = 64
REPLY_BYTES_MAX = 64 << 10
# The next address of a name is tried after so long.
_HEAD_START_S = 0.1


@dataclass(frozen=True)
class Target:
    """A port that clients use. `peer_id`: who should be there. `token`: one that it takes; empty where none is known, which ports
    don't count as an attempt of a stranger."""

    what: str
    address: Address
    peer_id: bytes = ANY_PEER
    token: str = field(default="", repr=False)


async def unreachable(targets: Sequence[Target], timeout_s: float) -> list[tuple[Target, str]]:
    """Those that a client here could not use, each with the reason. Takes at most about `timeout_s`; what could not be tried
    in that time is left out."""
    tickets = asyncio.Semaphore(AT_A_TIME)
    ends_at = asyncio.get_running_loop().time() + timeout_s

    async def tried(target: Target) -> str:
        async with tickets:
            left_s = ends_at - asyncio.get_running_loop().time()
            return await _greeted(target, min(TIMEOUT_S, left_s)) if left_s > 0 else ""

    reasons = await asyncio.gather(*map(tried, targets))
    return [(target, reason) for target, reason in zip(targets, reasons, strict=True) if reason]


async def _greeted(target: Target, timeout_s: float) -> str:
    """Why not; empty: a client can use it."""
    try:
        status, text = await asyncio.wait_for(_hello(target), timeout_s)
    except asyncio.TimeoutError:
        return f"no answer within {timeout_s * 1000:.0f} ms"
    except socket.gaierror as error:
        return f"the name is not found here ({error.strerror})"
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else str(error)
    except (asyncio.IncompleteReadError, WireError, ValueError):
        return "something else than kvstore answers there"
    if status in (Status.OK, Status.UNAUTHORIZED):
        return ""  # clients have tokens of their own
    if status is Status.WRONG_PEER:
        return "another server answers there"
    return text or status.name.lower()


async def _hello(target: Target) -> tuple[Status, str]:
    host, port = target.address
    reader, writer = await asyncio.open_connection(host, port, happy_eyeballs_delay=_HEAD_START_S)
    try:
        body = HelloRequest(Role.TOOL, target.token, "kvstore admin", target.peer_id).encode()
        writer.write(request_frame(Op.HELLO, 1, body))
        header = Header.decode(await reader.readexactly(HEADER_BYTES))
        if header.body_bytes > REPLY_BYTES_MAX:
            raise ValueError("no reply of ours")
        prefix, _ = decode_reply(await reader.readexactly(header.body_bytes))
        return prefix.status, prefix.text
    finally:
        writer.close()
