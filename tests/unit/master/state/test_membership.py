"""Who is in the cluster: states and transitions of segments, on a clock the test turns."""

from __future__ import annotations

import random

import pytest

from kvstore.master.state import effects as ef
from kvstore.master.state import events as ev
from kvstore.master.state.directory_state import StateLimits
from kvstore.master.state.membership import MembershipLimits
from kvstore_client.protocol import SegmentState, Status
from support.state_rig import ModelSegment, StateRig, attach, directory_content

LIMITS = StateLimits(
    MembershipLimits(grace_s=100.0, heartbeat_timeout_s=10.0, segments_max=3), recovery_s=5.0
)


@pytest.fixture
def model() -> ModelSegment:
    return ModelSegment(1, random.Random(1))


async def filled(model: ModelSegment) -> StateRig:
    """A segment with three objects, attached by session 1."""
    rig = await StateRig(LIMITS).start()
    await attach(rig, model, 1)
    model.add(1, 2, 3)
    rig.feed(model.batch(1, 1))
    await rig.commit()
    rig.take(ef.BroadcastMap)
    return rig


def served(rig: StateRig) -> bool:
    from support.state_rig import NS, fingerprint
    from support.wire import ExistsReply, ExistsRequest

    reply = rig.state.index.exists(ExistsRequest(NS, fingerprint(1)).encode())
    return ExistsReply.decode(reply).present[0]


def beat(model: ModelSegment, used: int = 0) -> ev.HeartbeatReceived:
    return ev.HeartbeatReceived(model.segment_id, model.pool_id, used, 0)


async def test_a_segment_is_live_only_once_its_registration_is_durable(model: ModelSegment) -> None:
    rig = await StateRig(LIMITS).start()
    epoch = rig.state.map_epoch
    rig.feed(ev.SegmentAttached(1, model.registration()))
    assert rig.segment(model.segment_id).state is SegmentState.SUSPECT
    assert rig.take(ef.AcceptSegment) == []
    await rig.commit()
    assert rig.segment(model.segment_id).state is SegmentState.LIVE
    assert rig.state.map_epoch > epoch
    assert rig.take(ef.AcceptSegment) == [ef.AcceptSegment(1, 0, 0, False)]


def go_silent(rig: StateRig, session: int) -> None:
    """The stream breaks, and no heartbeat comes."""
    rig.feed(ev.StreamLost(session))
    rig.feed(ev.Tick(), after_s=LIMITS.membership.streamless_timeout_s)


async def test_a_broken_stream_alone_takes_new_pages_away_and_no_old_ones(model: ModelSegment) -> None:
    rig = await filled(model)
    epoch, placed = rig.state.map_epoch, rig.state.membership_version
    rig.feed(ev.StreamLost(1))
    for _ in range(20):
        rig.feed(ev.Tick(), after_s=1)
        rig.feed(beat(model, used=5))
        assert served(rig)
        assert not rig.state.membership.knows(model.segment_id, model.pool_id), "it is to attach again"
    assert rig.segment(model.segment_id).state is SegmentState.LIVE
    assert not rig.segment(model.segment_id).placeable
    assert rig.state.membership_version > placed
    await attach(rig, model, 2)
    assert rig.segment(model.segment_id).placeable
    assert (rig.take(ef.BroadcastMap), rig.state.map_epoch) == ([], epoch), "the map says what it said"


async def test_a_hundred_attaches_are_one_map(model: ModelSegment) -> None:
    rig = await filled(model)
    epoch = rig.state.map_epoch
    for session in range(2, 102):
        rig.feed(ev.StreamLost(session - 1))
        await attach(rig, model, session)
    assert rig.state.map_epoch == epoch
    rig.feed(ev.StreamLost(101))
    rig.feed(ev.SegmentAttached(102, model.registration(tcp_port=99)))
    await rig.commit()
    assert rig.state.map_epoch == epoch + 1


async def test_heartbeats_without_a_stream_show_the_pages_of_a_suspect_segment_again(
    model: ModelSegment,
) -> None:
    rig = await filled(model)
    go_silent(rig, 1)
    assert not served(rig)
    rig.feed(beat(model))
    assert served(rig)
    rig.feed(ev.HeartbeatReceived(model.segment_id, b"x" * 16, 0, 0), after_s=2.5)
    rig.feed(ev.Tick())
    assert not served(rig), "heartbeats of other memory say nothing of this"


async def test_a_broken_stream_and_silence_make_it_suspect_and_the_same_pool_brings_it_back(
    model: ModelSegment,
) -> None:
    rig = await filled(model)
    go_silent(rig, 1)
    assert rig.segment(model.segment_id).state is SegmentState.SUSPECT
    assert len(rig.take(ef.BroadcastMap)) == 1
    assert not served(rig)
    assert directory_content(rig, model) == model.content()
    accepted = await attach(rig, model, 2)
    assert (accepted.durable_seq, accepted.need_inventory) == (3, False)
    assert not rig.pending, "nothing new had to be stored"
    assert served(rig)


async def test_a_new_pool_starts_with_nothing_under_another_index(model: ModelSegment) -> None:
    rig = await filled(model)
    old_index = rig.segment(model.segment_id).index
    rig.feed(ev.StreamLost(1))
    model.new_pool()
    assert rig.state.index.segment_usage(old_index)[0] > 0
    rig.feed(ev.SegmentAttached(2, model.registration()))
    assert rig.take(ef.SweepIndex)
    assert rig.state.index.segment_usage(old_index) == (0, 0)
    await rig.commit()
    (accepted,) = rig.take(ef.AcceptSegment)
    assert (accepted.durable_seq, accepted.need_inventory) == (0, False)
    assert accepted.segment_index != old_index
    assert not served(rig)
    await rig.restart()
    assert rig.state.index.entry_count == 0
    assert rig.segment(model.segment_id).record.endpoint.pool_id == model.pool_id


async def test_after_the_grace_period_a_silent_segment_is_gone_for_good(model: ModelSegment) -> None:
    rig = await filled(model)
    go_silent(rig, 1)
    rig.feed(ev.Tick(), after_s=99)
    assert rig.segment(model.segment_id).state is SegmentState.SUSPECT
    rig.feed(ev.Tick(), after_s=1)
    assert rig.segment(model.segment_id).state is SegmentState.GONE
    await rig.commit()
    assert rig.take(ef.SweepIndex)
    assert rig.state.index.entry_count == 0
    rig.feed(ev.Tick(), after_s=100)
    assert rig.state.segments.get(model.segment_id) is None
    await rig.restart()
    assert rig.state.index.entry_count == 0
    assert len(rig.state.segments) == 0


async def test_a_goodbye_takes_its_pages_out_at_once(model: ModelSegment) -> None:
    rig = await filled(model)
    rig.feed(ev.SegmentLeaving(1, "scaled in"))
    assert rig.segment(model.segment_id).state is SegmentState.GONE
    assert not served(rig)
    await rig.commit()
    rig.feed(ev.StreamLost(1))
    assert rig.segment(model.segment_id).state is SegmentState.GONE
    accepted = await attach(rig, model, 2)
    assert (accepted.durable_seq, accepted.need_inventory) == (0, False)


async def test_one_that_goes_away_with_its_pool_is_not_served_at_once_and_comes_back_with_every_entry(
    model: ModelSegment,
) -> None:
    rig = await filled(model)
    entries = rig.state.index.entry_count
    rig.feed(ev.SegmentAway(1, "upgrade"))
    assert rig.segment(model.segment_id).state is SegmentState.SUSPECT
    assert not served(rig) and rig.take(ef.BroadcastMap)
    rig.feed(beat(model))  # it was on its way on the link
    assert rig.segment(model.segment_id).state is SegmentState.SUSPECT
    rig.feed(ev.StreamLost(1))
    await rig.commit()
    assert rig.state.index.entry_count == entries
    accepted = await attach(rig, model, 2)
    assert (accepted.durable_seq, accepted.need_inventory) == (model.last_seq, False)
    assert rig.segment(model.segment_id).state is SegmentState.LIVE and served(rig)
    rig.feed(ev.Tick(), after_s=10)
    rig.feed(beat(model))
    assert rig.segment(model.segment_id).state is SegmentState.LIVE, "its heartbeats count again"


async def test_one_that_does_not_come_back_is_gone_after_the_grace_period_and_announces_all_when_it_does(
    model: ModelSegment,
) -> None:
    rig = await filled(model)
    rig.feed(ev.SegmentAway(1, "upgrade"))
    rig.feed(ev.StreamLost(1))
    rig.feed(ev.Tick(), after_s=rig.state.membership.limits.grace_s)
    assert rig.segment(model.segment_id).state is SegmentState.GONE
    await rig.commit()
    model.oldest_kept_seq = model.last_seq + 1
    accepted = await attach(rig, model, 2)
    assert (accepted.durable_seq, accepted.need_inventory) == (0, True)


async def test_stopped_heartbeats_make_it_suspect_and_any_message_brings_it_back(model: ModelSegment) -> None:
    rig = await filled(model)
    for _ in range(5):
        rig.feed(ev.Tick(), after_s=6)
        rig.feed(beat(model, used=77))
    assert rig.segment(model.segment_id).state is SegmentState.LIVE
    assert rig.segment(model.segment_id).used_bytes == 77
    rig.feed(ev.Tick(), after_s=10)
    assert rig.segment(model.segment_id).state is SegmentState.SUSPECT
    assert "segment_suspect" in rig.reports()
    rig.feed(beat(model))
    assert rig.segment(model.segment_id).state is SegmentState.LIVE
    rig.feed(ev.Tick(), after_s=10)
    model.add(4)
    rig.feed(model.batch(1, 4))
    assert rig.segment(model.segment_id).state is SegmentState.LIVE


async def test_heartbeats_tell_when_a_segment_evicts(model: ModelSegment) -> None:
    rig = await filled(model)

    def evicted(objects: int) -> ev.HeartbeatReceived:
        return ev.HeartbeatReceived(model.segment_id, model.pool_id, 0, 0, evicted_objects=objects)

    rig.feed(evicted(7))  # of a time before this master knew it
    rig.feed(evicted(7), after_s=1)
    assert rig.segment(model.segment_id).evicted_at == float("-inf")
    rig.feed(evicted(8), after_s=1)
    assert rig.segment(model.segment_id).evicted_at == rig.now


async def test_heartbeats_of_strangers_are_not_known(model: ModelSegment) -> None:
    rig = await filled(model)
    assert rig.state.membership.knows(model.segment_id, model.pool_id)
    assert not rig.state.membership.knows(model.segment_id, b"x" * 16)
    assert not rig.state.membership.knows(b"x" * 16, model.pool_id)
    rig.feed(ev.StreamLost(1))
    assert not rig.state.membership.knows(model.segment_id, model.pool_id)


async def test_a_second_stream_takes_over_from_the_first(model: ModelSegment) -> None:
    rig = await filled(model)
    rig.feed(ev.SegmentAttached(2, model.registration()))
    assert [c.session for c in rig.take(ef.CloseSession)] == [1]
    rig.feed(ev.StreamLost(1))  # of the one that was closed
    assert rig.segment(model.segment_id).state is SegmentState.LIVE
    go_silent(rig, 2)
    assert rig.segment(model.segment_id).state is SegmentState.SUSPECT


async def test_a_restarted_master_serves_at_once_and_suspects_who_does_not_come(model: ModelSegment) -> None:
    rig = await filled(model)
    before = rig.state.map_epoch
    await rig.restart()
    assert rig.state.map_epoch > before
    assert served(rig)
    rig.feed(ev.Tick(), after_s=4.9)
    assert served(rig)
    rig.feed(ev.Tick(), after_s=0.1)
    assert not served(rig)
    await attach(rig, model, 2)
    assert served(rig)


async def test_a_moved_endpoint_is_durable_before_it_is_told(model: ModelSegment) -> None:
    rig = await filled(model)
    rig.feed(ev.StreamLost(1))
    rig.feed(ev.SegmentAttached(2, model.registration(host="10.9.9.9", tcp_port=1)))
    assert rig.take(ef.AcceptSegment) == []
    await rig.commit()
    assert len(rig.take(ef.AcceptSegment)) == 1
    await rig.restart()
    (record,) = rig.state.segment_map()
    assert (record.host, record.tcp_port) == ("10.9.9.9", 1)
    assert directory_content(rig, model) == model.content()


async def test_a_registration_that_could_not_be_stored_counts_for_nothing(model: ModelSegment) -> None:
    rig = await StateRig(LIMITS).start()
    rig.feed(ev.SegmentAttached(1, model.registration()))
    await rig.fail_commits()
    assert [c.status for c in rig.take(ef.CloseSession)] == [Status.UNAVAILABLE]
    rig.feed(ev.StreamLost(1))
    await attach(rig, model, 2)
    model.add(1)
    rig.feed(model.batch(2, 1))
    await rig.commit()
    # An endpoint that could not be stored is stored with the next attach.
    rig.feed(ev.SegmentAttached(3, model.registration(host="moved")))
    await rig.fail_commits()
    rig.feed(ev.StreamLost(3))
    rig.feed(ev.SegmentAttached(4, model.registration(host="moved")))
    await rig.commit()
    await rig.restart()
    assert rig.state.segment_map()[0].host == "moved"
    assert directory_content(rig, model) == model.content()


# ---- draining ----------------------------------------------------------------------------------------------


def answers(rig: StateRig) -> list[tuple[int, Status]]:
    """(request, OK or why not) of what was answered since the last time."""
    ready = [(effect.request, Status.OK) for effect in rig.take(ef.DrainReady)]
    return ready + [(effect.request, effect.status) for effect in rig.take(ef.RequestRefused)]


async def drained(model: ModelSegment) -> StateRig:
    rig = await filled(model)
    rig.feed(ev.DrainRequested(1, model.segment_id, True))
    await rig.commit()
    assert answers(rig) == [(1, Status.OK)]
    return rig


async def test_a_drain_is_answered_when_it_is_durable_and_heeded_at_once(model: ModelSegment) -> None:
    rig = await filled(model)
    rig.feed(ev.DrainRequested(1, model.segment_id, True))
    assert rig.segment(model.segment_id).state is SegmentState.DRAINING
    assert not rig.segment(model.segment_id).placeable
    assert served(rig)
    assert answers(rig) == []
    await rig.commit()
    assert answers(rig) == [(1, Status.OK)]
    assert "segment_draining" in rig.reports()


async def test_draining_survives_a_restart_and_an_attach(model: ModelSegment) -> None:
    rig = await drained(model)
    await rig.restart()
    assert rig.segment(model.segment_id).state is SegmentState.DRAINING
    await attach(rig, model, 2)
    assert rig.segment(model.segment_id).state is SegmentState.DRAINING
    rig.feed(ev.DrainRequested(2, model.segment_id, False))
    assert rig.segment(model.segment_id).placeable
    await rig.commit()
    assert answers(rig) == [(2, Status.OK)]
    await rig.restart()
    assert rig.segment(model.segment_id).state is SegmentState.LIVE


async def test_draining_survives_silence_and_new_memory(model: ModelSegment) -> None:
    rig = await drained(model)
    go_silent(rig, 1)
    assert rig.segment(model.segment_id).state is SegmentState.SUSPECT
    model.new_pool()
    await attach(rig, model, 2)
    assert rig.segment(model.segment_id).state is SegmentState.DRAINING
    await rig.restart()
    model.new_pool()
    await attach(rig, model, 3)
    assert rig.segment(model.segment_id).state is SegmentState.DRAINING
    await rig.restart()
    assert rig.segment(model.segment_id).record.draining


async def test_a_drain_ends_with_a_goodbye(model: ModelSegment) -> None:
    rig = await drained(model)
    rig.feed(ev.SegmentLeaving(1, "done"))
    await rig.commit()
    rig.feed(ev.StreamLost(1))
    model.new_pool()
    await attach(rig, model, 2)
    assert rig.segment(model.segment_id).placeable


async def test_one_that_was_drained_leaves_for_good_when_it_goes_away(model: ModelSegment) -> None:
    rig = await drained(model)
    rig.feed(ev.SegmentAway(1, "shutting down"))
    assert rig.segment(model.segment_id).state is SegmentState.GONE
    await rig.commit()
    rig.feed(ev.StreamLost(1))
    await attach(rig, model, 2)
    assert rig.segment(model.segment_id).placeable


async def test_a_silent_segment_can_be_drained_and_is_when_it_comes_back(model: ModelSegment) -> None:
    rig = await filled(model)
    go_silent(rig, 1)
    rig.feed(ev.DrainRequested(1, model.segment_id, True))
    await rig.commit()
    assert answers(rig) == [(1, Status.OK)]
    assert rig.segment(model.segment_id).state is SegmentState.SUSPECT
    await attach(rig, model, 2)
    assert rig.segment(model.segment_id).state is SegmentState.DRAINING


async def test_a_drain_that_is_there_already_is_stored_and_answered_again(model: ModelSegment) -> None:
    rig = await drained(model)
    rig.reports()
    rig.feed(ev.DrainRequested(2, model.segment_id, True))
    assert answers(rig) == []
    await rig.commit()
    assert answers(rig) == [(2, Status.OK)]
    assert rig.reports() == []


async def test_a_drain_of_nobody_is_refused(model: ModelSegment) -> None:
    rig = await filled(model)
    rig.feed(ev.DrainRequested(1, b"x" * 16, True))
    rig.feed(ev.SegmentLeaving(1, "done"))
    rig.feed(ev.DrainRequested(2, model.segment_id, True))
    await rig.commit()
    assert answers(rig) == [(1, Status.MISS), (2, Status.MISS)]


async def test_one_change_of_a_segment_at_a_time(model: ModelSegment) -> None:
    rig = await filled(model)
    rig.feed(ev.DrainRequested(1, model.segment_id, True))
    rig.feed(ev.DrainRequested(2, model.segment_id, False))
    assert answers(rig) == [(2, Status.UNAVAILABLE)]
    await rig.commit()
    assert answers(rig) == [(1, Status.OK)]
    assert rig.segment(model.segment_id).state is SegmentState.DRAINING


@pytest.mark.parametrize("applied", [False, True], ids=["not written", "written all the same"])
async def test_a_drain_that_could_not_be_stored_is_taken_back_everywhere(
    model: ModelSegment, applied: bool
) -> None:
    rig = await filled(model)
    rig.feed(ev.DrainRequested(1, model.segment_id, True))
    await rig.fail_commits(applied)
    assert answers(rig) == [(1, Status.UNAVAILABLE)]
    assert rig.segment(model.segment_id).placeable
    # The next attach stores what the master goes by.
    rig.feed(ev.StreamLost(1))
    await attach(rig, model, 2)
    await rig.restart()
    assert rig.segment(model.segment_id).state is SegmentState.LIVE


async def test_a_snapshot_that_is_stored_meanwhile_does_not_undo_a_drain(model: ModelSegment) -> None:
    rig = await filled(model)
    rig.feed(ev.StreamLost(1))
    model.log = model.log[:1]  # it has lost its past: an inventory makes a snapshot of it
    assert (await attach(rig, model, 2)).need_inventory
    rig.feed(ev.DrainRequested(1, model.segment_id, True))
    for chunk in model.inventory(2):
        rig.feed(chunk)
    await rig.commit()
    await rig.restart()
    assert rig.segment(model.segment_id).state is SegmentState.DRAINING


async def test_more_segments_than_the_limit_are_refused() -> None:
    rig = await StateRig(LIMITS).start()
    rng = random.Random(1)
    for i in range(3):
        await attach(rig, ModelSegment(i, rng), i)
    rig.feed(ev.SegmentAttached(9, ModelSegment(9, rng).registration()))
    (closed,) = rig.take(ef.CloseSession)
    assert closed.session == 9
    assert "3 segments" in closed.reason


async def test_a_journal_behind_its_own_past_needs_an_inventory(model: ModelSegment) -> None:
    rig = await filled(model)
    rig.feed(ev.StreamLost(1))
    model.log = model.log[:1]
    accepted = await attach(rig, model, 2)
    assert accepted.need_inventory
    for chunk in model.inventory(2):
        rig.feed(chunk)
    await rig.commit()
    assert directory_content(rig, model) == model.content()
    assert rig.segment(model.segment_id).durable_seq == 1


# ---- a store that fails ------------------------------------------------------------------------------------


async def test_while_commits_stall_requests_are_refused_and_what_they_asked_for_is_stored_later(
    model: ModelSegment,
) -> None:
    rig = await filled(model)
    other = ModelSegment(2, random.Random(2))
    rig.feed(ev.DrainRequested(7, model.segment_id, True))
    rig.feed(ev.NamespaceOpened(8, b"{}", "n"))
    rig.feed(ev.SegmentAttached(9, other.registration()))
    rig.feed(ev.CommitStalled("disk full", 0.0))
    assert "commits_stalled" in rig.reports()
    assert answers(rig) == [] and rig.take(ef.CloseSession) == [], "it may be over in a moment"
    for _ in range(3):
        rig.feed(ev.CommitStalled("disk full", 0.6))
    refused = rig.take(ef.RequestRefused)
    assert {(r.request, r.status) for r in refused} == {(7, Status.UNAVAILABLE), (8, Status.UNAVAILABLE)}
    assert all("disk full" in r.text for r in refused)
    assert {c.session for c in rig.take(ef.CloseSession)} == {9}
    assert "commits_stalled" not in rig.reports(), "once is enough"
    assert served(rig)
    rig.feed(ev.StreamLost(9))
    await rig.commit()
    assert "commits_resumed" in rig.reports()
    assert rig.segment(model.segment_id).record.draining
    rig.feed(ev.NamespaceOpened(10, b"{}", "n"))
    assert [ready.request for ready in rig.take(ef.NamespaceReady)] == [10]
    accepted = await attach(rig, other, 11)
    assert accepted.session == 11 and not rig.pending


async def test_attaching_again_while_a_registration_waits_stores_it_once(model: ModelSegment) -> None:
    rig = await StateRig(LIMITS).start()
    for session in range(1, 6):
        rig.feed(ev.SegmentAttached(session, model.registration()))
        if session < 5:
            rig.feed(ev.StreamLost(session))
    assert len(rig.pending) == 1
    await rig.commit()
    assert [accepted.session for accepted in rig.take(ef.AcceptSegment)] == [5]


async def test_the_commit_of_a_superseded_stream_admits_nothing_of_a_newer_one(model: ModelSegment) -> None:
    rig = await StateRig(LIMITS).start()
    rig.feed(ev.SegmentAttached(1, model.registration()))
    rig.feed(ev.SegmentAttached(2, model.registration(host="moved")))
    await rig.commit(1)
    assert rig.take(ef.AcceptSegment) == []
    assert not served_at(rig, "moved")
    await rig.commit()
    assert [accepted.session for accepted in rig.take(ef.AcceptSegment)] == [2]
    assert served_at(rig, "moved")


def served_at(rig: StateRig, host: str) -> bool:
    return any(r.host == host and r.state is SegmentState.LIVE for r in rig.state.segment_map())


async def test_a_drop_that_could_not_be_stored_is_tried_again_after_the_grace_period(
    model: ModelSegment,
) -> None:
    rig = await filled(model)
    go_silent(rig, 1)
    rig.feed(ev.Tick(), after_s=100)
    await rig.fail_commits()
    assert rig.segment(model.segment_id).state is SegmentState.SUSPECT
    rig.feed(ev.Tick(), after_s=99)
    assert not rig.pending
    rig.feed(ev.Tick(), after_s=1)
    assert len(rig.pending) == 1
    await rig.commit()
    await rig.restart()
    assert len(rig.state.segments) == 0


async def test_a_pause_of_the_master_is_no_sign_of_life_of_who_was_heard_right_after_it(
    model: ModelSegment,
) -> None:
    rig = await filled(model)
    rig.feed(beat(model), after_s=60.0)  # waited in the socket while the loop hung
    rig.feed(ev.Tick(late_s=59.5))
    rig.feed(ev.Tick(), after_s=2.5)
    assert not rig.segment(model.segment_id).vouched
    rig.feed(ev.Tick(), after_s=8.0)
    assert rig.segment(model.segment_id).state is SegmentState.SUSPECT


async def test_a_pause_of_the_master_takes_nothing_from_the_time_to_attach_after_its_restart(
    model: ModelSegment,
) -> None:
    rig = await filled(model)
    await rig.restart()
    rig.feed(ev.Tick(late_s=20.0), after_s=20.5)
    assert rig.segment(model.segment_id).state is SegmentState.LIVE
    rig.feed(ev.Tick(), after_s=5.0)
    assert rig.segment(model.segment_id).state is SegmentState.SUSPECT
