"""Copies that nobody asked for are dropped on order, at a bounded rate, and never the last one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kvstore.v1 import control_pb2 as pb

from kvstore.master import copy_trimmer
from kvstore.master.copy_trimmer import CopyTrimmer
from kvstore.master.metrics import MasterMetrics
from kvstore.master.segment_questions import Respondent, SegmentQuestions
from kvstore.master.state import events as ev
from kvstore_client.protocol import Status
from support.state_rig import NS, ModelSegment, StateRig, attach, fingerprint

AFTER_S = copy_trimmer.SETTLE_S + 1


class Rig:
    """Segments of a real state machine that answer orders as `answer` has it: the status of each object by segment."""

    def __init__(self) -> None:
        self.orders: list[tuple[int, list[bytes]]] = []
        self.answer: Callable[[int, bytes], Status] | None = lambda index, fp: Status.OK

    async def start(self, segments: int) -> Rig:
        self.state = await StateRig().start()
        self.questions = SegmentQuestions()
        self.trimmer = CopyTrimmer(self.state.state, self.questions, MasterMetrics())
        self.state.state.index.track_duplicates(1000)
        self.models = []
        for number in range(1, segments + 1):
            model = ModelSegment(number, random.Random(number))
            await attach(self.state, model, number)
            self.models.append(model)
            self.questions.joined(number, Respondent(number - 1, lambda m, n=number: self._asked(n, m)))
        return self

    def _asked(self, session: int, message: Any) -> None:
        order = message.drop_objects
        fps = [order.fingerprints[at : at + 16] for at in range(0, len(order.fingerprints), 16)]
        assert order.namespace == NS
        self.orders.append((session - 1, fps))
        if self.answer is not None:
            statuses = bytes(self.answer(session - 1, fp) for fp in fps)
            self.questions.answered(
                session, order.question, pb.Dropped(question=order.question, statuses=statuses)
            )

    async def add(self, segment: int, *numbers: int) -> None:
        model = self.models[segment]
        for number in numbers:
            model.add(number)
        self.state.feed(model.batch(segment + 1, model.last_seq - len(numbers) + 1))
        await self.state.commit()

    async def look(self, now: float) -> list[tuple[int, list[bytes]]]:
        self.orders.clear()
        await self.trimmer.look(now)
        return list(self.orders)


async def test_one_copy_is_left_of_what_two_have_put_and_only_once_that_has_settled() -> None:
    rig = await Rig().start(2)
    await rig.add(0, 1, 2, 3)
    await rig.add(1, 2, 3, 4)
    assert await rig.look(0) == []
    assert await rig.look(copy_trimmer.SETTLE_S / 2) == []
    ((index, fps),) = await rig.look(AFTER_S)
    assert index in (0, 1)
    assert sorted(fps) == sorted((fingerprint(2), fingerprint(3)))
    assert await rig.look(2 * AFTER_S) == []


async def test_as_many_copies_stay_as_a_put_of_the_namespace_has_asked_for() -> None:
    rig = await Rig().start(3)
    rig.trimmer.wanted(NS, 2)
    await rig.add(0, 1, 2)
    await rig.add(1, 1, 2)
    await rig.add(2, 2)
    await rig.look(0)
    ((_, fps),) = await rig.look(AFTER_S)
    assert fps == [fingerprint(2)]


async def test_the_last_copy_that_is_heard_is_never_dropped() -> None:
    rig = await Rig().start(2)
    await rig.add(0, 1)
    await rig.add(1, 1)
    await rig.look(0)
    rig.state.feed(ev.StreamLost(1))
    assert await rig.look(AFTER_S) == [], "the other one may be gone for good"


async def test_a_holder_without_its_session_is_none_though_its_heartbeats_come() -> None:
    rig = await Rig().start(2)
    await rig.add(0, 1)
    await rig.add(1, 1)
    await rig.look(0)
    rig.state.feed(ev.StreamLost(1))
    rig.state.feed(ev.HeartbeatReceived(rig.models[0].segment_id, rig.models[0].pool_id, 0, 0))
    assert await rig.look(AFTER_S) == []


async def test_the_copies_of_a_draining_segment_neither_count_nor_are_dropped() -> None:
    rig = await Rig().start(3)
    await rig.add(0, 1, 2)
    await rig.add(1, 1, 2)
    await rig.add(2, 2)
    rig.state.feed(ev.DrainRequested(1, rig.models[0].segment_id, True))
    await rig.state.commit()
    await rig.look(0)
    ((index, fps),) = await rig.look(AFTER_S)
    assert index in (1, 2)
    assert fps == [fingerprint(2)], "which two others have"


async def test_what_is_in_use_is_asked_again_later_and_not_for_ever() -> None:
    rig = await Rig().start(2)
    await rig.add(0, 1)
    await rig.add(1, 1)
    rig.answer = lambda index, fp: Status.UNAVAILABLE
    now, orders = 0.0, 0
    for _ in range(2 * copy_trimmer.TRIES_MAX):
        orders += len(await rig.look(now))
        now += copy_trimmer.SETTLE_S * 2**copy_trimmer.TRIES_MAX
    assert orders == copy_trimmer.TRIES_MAX


async def test_a_segment_of_an_earlier_release_is_left_alone(monkeypatch: Any) -> None:
    monkeypatch.setattr(copy_trimmer, "_ANSWER_S", 0.01)
    rig = await Rig().start(2)
    await rig.add(0, 1)
    await rig.add(1, 1)
    rig.answer = None
    await rig.look(0)
    assert len(await rig.look(AFTER_S)) == 1
    assert await rig.look(AFTER_S + copy_trimmer.DEAF_S / 2) == []


async def test_no_more_is_dropped_in_a_period_than_the_rate_allows(monkeypatch: Any) -> None:
    monkeypatch.setattr(copy_trimmer, "DROPPED_PER_S", 20)
    rig = await Rig().start(2)
    await rig.add(0, *range(100))
    await rig.add(1, *range(100))
    await rig.look(0)
    dropped = [sum(len(fps) for _, fps in await rig.look(AFTER_S)) for _ in range(11)]
    assert dropped == [10] * 10 + [0]
