"""Orders to segments to copy from each other: what is asked of whom, and what is made of the answers."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from kvstore.v1 import control_pb2 as pb

from kvstore.master.metrics import MasterMetrics
from kvstore.master.object_copies import ORDERS_A_TARGET_MAX, ObjectCopies
from kvstore.master.segment_questions import Respondent, SegmentQuestions
from kvstore_client.protocol import FETCH_ENTRIES_MAX, Status
from support.state_rig import NS, ModelSegment, StateRig, attach, fingerprint

OBJECTS = [fingerprint(1), fingerprint(2)]


class Rig:
    """A master's state with two segments, whose ends of the streams are here."""

    async def start(self) -> Rig:
        self.rig = await StateRig().start()
        self.questions = SegmentQuestions()
        self.heard: list[asyncio.Queue[Any]] = []
        self.indexes: list[int] = []
        for session in (1, 2):
            model = ModelSegment(session, random.Random(session))
            index = (await attach(self.rig, model, session)).segment_index
            queue: asyncio.Queue[Any] = asyncio.Queue()
            self.questions.joined(session, Respondent(index, queue.put_nowait, takes_copy_orders=True))
            self.heard.append(queue)
            self.indexes.append(index)
        self.copies = ObjectCopies(self.rig.state, self.questions, MasterMetrics(), 1 << 20)
        return self

    def copy(self, **options: Any) -> asyncio.Task[Any]:
        target, source = self.indexes
        return asyncio.create_task(self.copies.copy(target, source, NS, OBJECTS, **options))

    async def order(self) -> Any:
        return (await asyncio.wait_for(self.heard[0].get(), 20)).copy_objects

    def answer(self, order: Any, statuses: list[Status], **fields: Any) -> None:
        copied = pb.Copied(question=order.question, statuses=bytes(statuses), **fields)
        self.questions.answered(1, order.question, copied)


@pytest.fixture
async def rig() -> Rig:
    return await Rig().start()


async def test_the_target_is_told_where_the_source_is(rig: Rig) -> None:
    task = rig.copy(may_evict=True, timeout_s=7)
    order = await rig.order()
    source = next(each for each in rig.rig.state.segments if each.index == rig.indexes[1])
    endpoint = source.record.endpoint
    assert (order.host, order.tcp_port, order.pool_id) == (endpoint.host, endpoint.tcp_port, endpoint.pool_id)
    assert (order.namespace, order.fingerprints) == (NS, b"".join(OBJECTS))
    assert (order.may_evict, order.bytes_per_s, order.timeout_ms) == (True, 1 << 20, 7000)
    rig.answer(order, [Status.OK, Status.EXISTS], copied_bytes=5)
    outcome = await task
    assert (outcome.statuses, outcome.copied_bytes, outcome.safe) == ((Status.OK, Status.EXISTS), 5, 2)
    assert rig.heard[1].empty(), "the source was asked"


async def test_an_answer_that_is_none_is_nothing_copied(rig: Rig) -> None:
    for statuses in ([Status.OK], [Status.OK] * 3):
        task = rig.copy()
        rig.answer(await rig.order(), statuses)
        outcome = await task
        assert (outcome.statuses, outcome.safe) == ((Status.UNAVAILABLE,) * 2, 0)
    task = rig.copy()
    rig.answer(await rig.order(), [Status.OK, 200])  # type: ignore[list-item]
    assert (await task).statuses == (Status.OK, Status.INTERNAL)


async def test_a_target_that_leaves_has_copied_nothing(rig: Rig) -> None:
    task = rig.copy()
    await rig.order()
    rig.questions.left(1)
    outcome = await task
    assert outcome.statuses == (Status.UNAVAILABLE,) * 2 and outcome.trouble
    assert "not attached" in (await rig.copy()).trouble


async def test_a_segment_of_an_earlier_release_is_not_asked(rig: Rig) -> None:
    rig.questions.left(1)
    rig.questions.joined(1, Respondent(rig.indexes[0], rig.heard[0].put_nowait))
    assert not rig.copies.can_copy(rig.indexes[0])
    assert (await rig.copy()).statuses == (Status.UNAVAILABLE,) * 2
    assert rig.heard[0].empty()


async def test_who_no_longer_waits_takes_the_order_back(rig: Rig) -> None:
    task = rig.copy()
    order = await rig.order()
    task.cancel()
    await asyncio.wait({task})
    assert (await rig.heard[0].get()).cancel_copy.question == order.question


async def test_a_target_has_a_few_orders_at_a_time(rig: Rig) -> None:
    tasks = [rig.copy() for _ in range(ORDERS_A_TARGET_MAX + 1)]
    orders = [await rig.order() for _ in range(ORDERS_A_TARGET_MAX)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert rig.heard[0].empty()
    rig.answer(orders[0], [Status.OK] * 2)
    orders.append(await rig.order())
    for order in orders[1:]:
        rig.answer(order, [Status.OK] * 2)
    assert [(await task).safe for task in tasks] == [2] * 3
    with pytest.raises(ValueError, match="cut it"):
        await rig.copies.copy(*rig.indexes, NS, [bytes(16)] * (FETCH_ENTRIES_MAX + 1))
