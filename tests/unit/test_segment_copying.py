"""Copy orders at a segment: bounded, answered whatever happens, and over with their session."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from kvstore.v1 import control_pb2 as pb

from kvstore.segment.copying import AT_A_TIME_MAX, WAITING_MAX, CopyOrders
from kvstore_client.protocol import FETCH_ENTRIES_MAX, Status


class SlowCopier:
    """Copies nothing until it is told to."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.may_end = threading.Event()
        self.cancelled: list[Any] = []

    def copy(self, cancellation: Any, *, fingerprints: bytes, **order: Any) -> tuple[bytes, int, str]:
        self.begun.append(fingerprints)
        assert self.may_end.wait(20)
        if cancellation in self.cancelled:
            return bytes([Status.UNAVAILABLE]) * (len(fingerprints) // 16), 0, "it was cancelled"
        return bytes([Status.OK]) * (len(fingerprints) // 16), 100, ""

    def cancel(self, cancellation: Any) -> None:
        self.cancelled.append(cancellation)
        self.may_end.set()


class Master:
    def __init__(self) -> None:
        self.copier = SlowCopier()
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        self.orders = CopyOrders(self.copier, self._hear)

    async def _hear(self, message: Any) -> None:
        self.said.put_nowait(message.copied)

    async def order(self, question: int, **fields: Any) -> None:
        order = {"host": "h", "tcp_port": 1, "pool_id": b"p" * 16, "namespace": b"n" * 8, "timeout_ms": 1000}
        order["fingerprints"] = bytes([question]) * 32
        await self.orders.take(pb.CopyObjects(question=question, **{**order, **fields}))

    async def answer(self) -> Any:
        return await asyncio.wait_for(self.said.get(), 20)


async def test_orders_are_answered_as_they_are_done() -> None:
    master = Master()
    master.copier.may_end.set()
    await master.order(7)
    copied = await master.answer()
    assert (copied.question, copied.statuses, copied.copied_bytes) == (7, bytes(2), 100)


async def test_more_than_the_bound_are_refused_at_once() -> None:
    master = Master()
    for question in range(1, AT_A_TIME_MAX + WAITING_MAX + 1):
        await master.order(question)
    await master.order(99)
    refused = await master.answer()
    assert (refused.question, set(refused.statuses)) == (99, {Status.UNAVAILABLE})
    assert "4 copy orders" in refused.trouble
    assert len(master.copier.begun) <= AT_A_TIME_MAX
    master.copier.may_end.set()
    answered = {(await master.answer()).question for _ in range(AT_A_TIME_MAX + WAITING_MAX)}
    assert answered == {1, 2, 3, 4}
    await master.orders.stop()  # waits for their tasks, which end behind their answers
    await master.order(5)
    assert (await master.answer()).statuses == bytes(2), "there was no room again"


async def test_orders_that_can_not_be_are_refused_and_reach_no_copier() -> None:
    master = Master()
    master.copier.may_end.set()
    for wrong in (
        {"pool_id": bytes(16)},
        {"pool_id": b"short"},
        {"namespace": b"short"},
        {"fingerprints": b"short"},
        {"fingerprints": bytes(16 * (FETCH_ENTRIES_MAX + 1))},
        {"tcp_port": 65_536},
        {"timeout_ms": 600_001},
    ):
        await master.order(1, **wrong)
        copied = await master.answer()
        assert copied.trouble and set(copied.statuses) <= {Status.UNAVAILABLE}
    assert master.copier.begun == []


async def test_an_order_is_taken_back_by_its_number() -> None:
    master = Master()
    await master.order(1)
    master.orders.cancel(99)  # none of ours
    assert master.copier.cancelled == []
    master.orders.cancel(1)
    assert set((await master.answer()).statuses) == {Status.UNAVAILABLE}


async def test_nothing_goes_on_when_the_session_is_over() -> None:
    master = Master()
    for question in range(1, 5):
        await master.order(question)
    await asyncio.wait_for(master.orders.stop(), 20)
    assert len(master.copier.cancelled) == 4
    assert master.said.qsize() == 4
