"""Carries out a master's orders to copy objects from other segments. What is copied is in the journal as any put, so that nothing here
has to outlast the session that ordered it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from kvstore.common.logs import log_throttled
from kvstore.v1 import control_pb2 as pb
from kvstore_client._native import CopyCancellation
from kvstore_client.address import PORT_MAX
from kvstore_client.protocol import FETCH_ENTRIES_MAX, FINGERPRINT_BYTES, Status

logger = logging.getLogger(__name__)

AT_A_TIME_MAX = 2
WAITING_MAX = 2
"""Orders that wait for those; one more is refused."""
TIMEOUT_MS_MAX = 600_000


class Copier(Protocol):
    """The native ObjectCopier."""

    def copy(
        self,
        cancellation: CopyCancellation,
        *,
        host: str,
        port: int,
        unix_path: str,
        pool_id: bytes,
        ns: bytes,
        fingerprints: bytes,
        may_evict: bool,
        bytes_per_s: int,
        timeout_ms: int,
    ) -> tuple[bytes, int, str]: ...

    def cancel(self, cancellation: CopyCancellation) -> None: ...


class CopyOrders:
    """Those of one session. Event loop only."""

    def __init__(self, copier: Copier, answer: Callable[[Any], Awaitable[None]]) -> None:
        """`answer` sends a SegmentMessage to the master of the session."""
        self._copier = copier
        self._answer = answer
        self._room = asyncio.Semaphore(AT_A_TIME_MAX)
        self._cancellations: dict[int, CopyCancellation] = {}  # by question
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, order: Any) -> None:
        """A pb.CopyObjects: answered when it is done, at once where it can't be."""
        refused = _wrong_with(order)
        if not refused and len(self._tasks) >= AT_A_TIME_MAX + WAITING_MAX:
            refused = f"{AT_A_TIME_MAX + WAITING_MAX} copy orders are under way here, the most at a time"
        if refused or order.question in self._cancellations:
            await self._told(order, _all_of(order, Status.UNAVAILABLE), 0, refused or "it is ordered already")
            return
        cancellation = self._cancellations[order.question] = CopyCancellation()
        task = asyncio.create_task(self._carry_out(order, cancellation), name="copy-order")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self, question: int) -> None:
        if (cancellation := self._cancellations.get(question)) is not None:
            self._copier.cancel(cancellation)

    async def stop(self) -> None:
        """The session is over: nothing of its orders goes on when this returns."""
        for cancellation in self._cancellations.values():
            self._copier.cancel(cancellation)
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _carry_out(self, order: Any, cancellation: CopyCancellation) -> None:
        try:
            async with self._room:
                statuses, copied_bytes, trouble = await asyncio.to_thread(
                    self._copier.copy,
                    cancellation,
                    host=order.host,
                    port=order.tcp_port,
                    unix_path=order.unix_path,
                    pool_id=order.pool_id,
                    ns=order.namespace,
                    fingerprints=order.fingerprints,
                    may_evict=order.may_evict,
                    bytes_per_s=order.bytes_per_s,
                    timeout_ms=order.timeout_ms,
                )
        except Exception as error:  # short of memory, say: the master orders it again, or elsewhere
            statuses, copied_bytes, trouble = _all_of(order, Status.INTERNAL), 0, str(error)
        finally:
            del self._cancellations[order.question]
        if trouble:
            source = f"{order.host}:{order.tcp_port}"
            log_throttled(
                logger,
                logging.WARNING,
                "copy_stopped",
                source,
                source=source,
                why=trouble,
                objects=len(statuses),
            )
        await self._told(order, statuses, copied_bytes, trouble)

    async def _told(self, order: Any, statuses: bytes, copied_bytes: int, trouble: str) -> None:
        copied = pb.Copied(
            question=order.question, statuses=statuses, copied_bytes=copied_bytes, trouble=trouble
        )
        with contextlib.suppress(Exception):  # the session is over; whoever runs it says why
            await self._answer(pb.SegmentMessage(copied=copied))


def _all_of(order: Any, status: Status) -> bytes:
    return bytes([status]) * (len(order.fingerprints) // FINGERPRINT_BYTES)


def _wrong_with(order: Any) -> str:
    """Empty: nothing."""
    if len(order.fingerprints) % FINGERPRINT_BYTES or len(order.namespace) != 8 or len(order.pool_id) != 16:
        return "fingerprints have 16 bytes each, a namespace has 8 and a pool id 16"
    if not any(order.pool_id):
        return "the pool id is zero"
    if len(order.fingerprints) > FETCH_ENTRIES_MAX * FINGERPRINT_BYTES:
        return f"an order has at most {FETCH_ENTRIES_MAX} objects: cut it"
    if order.tcp_port > PORT_MAX or order.timeout_ms > TIMEOUT_MS_MAX:
        return f"a port is at most {PORT_MAX}, a timeout at most {TIMEOUT_MS_MAX} ms"
    return ""
