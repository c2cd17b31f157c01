"""Two processes with one segment id: a data directory was copied."""

from __future__ import annotations

import random

import pytest

from kvstore.master.ports.health import leader_problems
from kvstore.master.state import effects as ef
from kvstore.master.state import events as ev
from kvstore.master.store_watch import StoreView
from kvstore_client.protocol import SegmentState, Status
from support.state_rig import ModelSegment, StateRig, attach


@pytest.fixture
def model() -> ModelSegment:
    return ModelSegment(1, random.Random(1))


def clone_of(model: ModelSegment) -> ModelSegment:
    clone = ModelSegment(1, random.Random(2))
    assert clone.segment_id == model.segment_id and clone.pool_id != model.pool_id
    return clone


def beat(model: ModelSegment) -> ev.HeartbeatReceived:
    return ev.HeartbeatReceived(model.segment_id, model.pool_id, 0, 0)


def come(rig: StateRig, model: ModelSegment, session: int, host: str = "10.0.0.2") -> list[ef.CloseSession]:
    rig.feed(ev.SegmentAttached(session, model.registration(host=host)))
    return rig.take(ef.CloseSession)


async def test_the_living_one_keeps_the_id_and_the_newcomer_is_told_both_addresses_and_what_to_do(
    model: ModelSegment,
) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    clone = clone_of(model)
    epoch = rig.state.map_epoch
    for session in range(2, 202):
        rig.feed(beat(model), after_s=0.5)
        (refused,) = come(rig, clone, session)
        assert (refused.session, refused.status) == (session, Status.CONFLICT)
        assert "10.0.0.1:7450" in refused.reason and "10.0.0.2:7450" in refused.reason
        assert "--data-dir" in refused.reason
        rig.feed(ev.StreamLost(session))
        rig.feed(beat(clone))
        rig.feed(ev.Tick())
    segment = rig.segment(model.segment_id)
    assert (segment.state, segment.session, segment.index) == (SegmentState.LIVE, 1, 0)
    assert rig.state.map_epoch == epoch and not rig.pending
    assert {r.throttle_key for r in rig.take(ef.Report) if r.event == "segment_id_taken"} == {"10.0.0.2:7450"}
    problems = "; ".join(leader_problems(rig.now, rig.state.segments, StoreView(), 0))
    assert "10.0.0.1:7450" in problems and "10.0.0.2:7450" in problems
    rig.feed(beat(model), after_s=61.0)
    assert leader_problems(rig.now, rig.state.segments, StoreView(), 0) == []


async def test_one_that_crashed_comes_back_at_once_with_new_memory_on_its_host(model: ModelSegment) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    rig.feed(ev.StreamLost(1))
    assert come(rig, clone_of(model), 2, host="10.0.0.1") == []
    await rig.commit()
    assert [a.session for a in rig.take(ef.AcceptSegment)] == [2]


async def test_from_another_host_it_is_let_in_when_the_one_whose_stream_broke_has_not_spoken_up(
    model: ModelSegment,
) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    rig.feed(ev.StreamLost(1))
    (refused,) = come(rig, clone_of(model), 2)
    assert refused.status is Status.CONFLICT and "may be alive" in refused.reason
    rig.feed(ev.StreamLost(2))
    rig.feed(ev.Tick(), after_s=2.6)
    assert come(rig, clone_of(model), 3) == []
    await rig.commit()
    assert [a.session for a in rig.take(ef.AcceptSegment)] == [3]


async def test_after_a_master_restart_the_copy_that_comes_first_does_not_take_the_id(
    model: ModelSegment,
) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    await rig.restart()
    assert [c.status for c in come(rig, clone_of(model), 1)] == [Status.CONFLICT]
    rig.feed(ev.SegmentAttached(2, model.registration(host="10.0.0.1")))
    assert [a.session for a in rig.take(ef.AcceptSegment)] == [2]
    assert [c.status for c in come(rig, clone_of(model), 3)] == [Status.CONFLICT]


async def test_behind_a_stream_that_nobody_has_closed_it_is_let_in_when_the_heartbeats_stop(
    model: ModelSegment,
) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    again = clone_of(model)
    assert [c.status for c in come(rig, again, 2)] == [Status.CONFLICT]
    rig.now += 2.4
    assert [c.status for c in come(rig, again, 3)] == [Status.CONFLICT]
    rig.now += 0.2
    assert [c.session for c in come(rig, again, 4)] == [1], "the old stream is closed instead"


async def test_one_whose_stream_broke_keeps_its_id_while_its_heartbeats_come(model: ModelSegment) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    rig.feed(ev.StreamLost(1))
    rig.feed(beat(model))
    assert [c.status for c in come(rig, clone_of(model), 2)] == [Status.CONFLICT]
    await attach(rig, model, 3)
    assert rig.segment(model.segment_id).index == 0


async def test_after_a_restart_of_the_master_the_one_that_is_heard_has_it(model: ModelSegment) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    await rig.restart()
    rig.feed(beat(model))
    assert [c.status for c in come(rig, clone_of(model), 2)] == [Status.CONFLICT]
    await attach(rig, model, 3)


async def test_a_segment_that_comes_again_with_its_own_pool_takes_over_from_its_own_stream(
    model: ModelSegment,
) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    assert [c.session for c in come(rig, model, 2, host="10.0.0.9")] == [1]


async def test_a_master_that_hung_itself_calls_nobody_silent_for_it(model: ModelSegment) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    rig.feed(ev.Tick(late_s=59.5), after_s=60.0)
    assert rig.segment(model.segment_id).state is SegmentState.LIVE
    assert rig.segment(model.segment_id).vouched
    rig.feed(ev.Tick(), after_s=9.5)
    assert rig.segment(model.segment_id).state is SegmentState.SUSPECT
