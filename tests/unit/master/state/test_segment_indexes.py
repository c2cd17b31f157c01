"""Segment indexes come back into use, and never while anything refers to them."""

from __future__ import annotations

import random

import pytest

from kvstore.master.state import effects as ef
from kvstore.master.state import events as ev
from kvstore.master.state import layout, segment_indexes
from kvstore.master.state.directory_state import StateLimits
from kvstore.master.state.membership import MembershipLimits
from kvstore.master.state.segment_indexes import SegmentIndexes
from kvstore_client.protocol import SegmentState, Status
from support.state_rig import ModelSegment, StateRig, attach, directory_content

LIMITS = StateLimits(MembershipLimits(grace_s=100.0, heartbeat_timeout_s=10.0), recovery_s=5.0)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "SEGMENT_INDEX_MAX", 4)
    monkeypatch.setattr(segment_indexes, "RESTING", 1)


def test_an_index_is_free_when_it_has_left_the_table_and_the_records_and_holds_nothing() -> None:
    held: set[int] = set()
    for order in (("left", "removed"), ("removed", "left")):
        indexes = SegmentIndexes(held.__contains__)
        assert [indexes.take() for _ in range(5)] == [0, 1, 2, 3, None]
        for step in order:
            assert indexes.take() is None
            (indexes.left_table if step == "left" else indexes.record_removed)(2)
        held.add(2)
        assert indexes.take() is None
        held.clear()
        assert indexes.take() == 2
        assert indexes.take() is None


def test_what_lies_between_the_recorded_ones_is_free_after_a_restart() -> None:
    indexes = SegmentIndexes(lambda index: False)
    indexes.recover({0, 3})
    assert [indexes.take() for _ in range(3)] == [1, 2, None]


async def test_a_segment_may_come_back_with_new_memory_for_ever() -> None:
    rig = await StateRig(LIMITS).start()
    model = ModelSegment(1, random.Random(1))
    other = ModelSegment(2, random.Random(2))
    await attach(rig, other, 1)
    other.add(500)
    rig.feed(other.batch(1, 1))
    for life in range(40):
        model.new_pool()
        session = 10 + life
        await attach(rig, model, session)
        model.add(life)
        rig.feed(model.batch(session, 1))
        await rig.commit()
        assert directory_content(rig, model) == model.content(), life
        assert directory_content(rig, other) == other.content(), life
        records = [r.index for r in rig.state.segment_map()]
        assert len(set(records)) == 2
        rig.feed(ev.StreamLost(session))
        if life % 10 == 9:
            await rig.restart()
            await attach(rig, other, 1)
            assert directory_content(rig, model) == model.content(), "as the records say"


async def test_no_index_is_given_out_while_a_record_names_it_or_entries_lie_under_it() -> None:
    rig = await StateRig(LIMITS).start()
    models = [ModelSegment(number, random.Random(number)) for number in range(5)]
    for number, model in enumerate(models[:4]):
        await attach(rig, model, 1 + number)
        model.add(number)
        rig.feed(model.batch(1 + number, 1))
    await rig.commit()

    def refused() -> bool:
        session = rig.state.term * 1000 + len(rig.effects)
        rig.feed(ev.SegmentAttached(session, models[4].registration()))
        closed = [c.status for c in rig.take(ef.CloseSession)]
        if not closed:
            rig.feed(ev.StreamLost(session))
        return closed == [Status.UNAVAILABLE]

    assert refused()
    rig.feed(ev.SegmentLeaving(1, "bye"))
    assert refused(), "that it has left is not durable"
    await rig.commit()
    assert refused(), "the map says that it is gone, and names it"
    rig.feed(ev.Tick(), after_s=1.0)
    rig.now += 100.0
    for model in models[1:4]:
        rig.feed(ev.HeartbeatReceived(model.segment_id, model.pool_id, 0, 0))
    rig.feed(ev.Tick())
    assert len(rig.state.segments) == 3
    await attach(rig, models[4], 99)
    assert rig.segment(models[4].segment_id).index == 0
    assert directory_content(rig, models[4]) == {}


async def test_a_segment_whose_end_is_not_durable_is_not_forgotten() -> None:
    rig = await StateRig(LIMITS).start()
    model = ModelSegment(1, random.Random(1))
    await attach(rig, model, 1)
    rig.feed(ev.SegmentLeaving(1, "bye"))
    rig.feed(ev.Tick(), after_s=1000.0)
    assert rig.segment(model.segment_id).state is SegmentState.GONE
    await rig.commit()
    assert len(rig.take(ef.SweepIndex)) == 1
    rig.feed(ev.Tick())
    assert len(rig.state.segments) == 0


async def test_entries_are_dropped_once_however_a_segment_ends_and_comes_back() -> None:
    rig = await StateRig(LIMITS).start()
    model = ModelSegment(1, random.Random(1))
    await attach(rig, model, 1)
    for committed in (True, False):
        rig.feed(ev.SegmentLeaving(rig.segment(model.segment_id).session or 0, "bye"))
        if committed:
            await rig.commit()
        model.new_pool()
        await attach(rig, model, 2 + committed)
        await rig.commit()
        assert len(rig.take(ef.SweepIndex)) == 1, committed
