"""Answers to PLACE."""

from __future__ import annotations

import random

from kvstore.master.metadata.store import SpaceLevel
from kvstore.master.state import events as ev
from kvstore.master.state.data_paths import DataPaths
from kvstore.master.state.placement import HostFirstTwoChoices
from kvstore.master.state.placer import Placer
from kvstore_client.protocol import ALREADY_THERE, NO_SEGMENT
from support.state_rig import NS, ModelSegment, StateRig, attach, fingerprint
from support.wire.directory import PlaceCopiesReply, PlaceReply, PlaceRequest


async def placed(rig: StateRig, placer: Placer, *numbers: int) -> tuple[int, ...]:
    body = PlaceRequest(NS, (100,) * len(numbers), b"".join(map(fingerprint, numbers))).encode()
    return PlaceReply.decode(placer.place(rig.now, body, NO_SEGMENT)).segments


async def one_segment() -> tuple[StateRig, ModelSegment, Placer]:
    """With object 1 on it."""
    rig = await StateRig().start()
    model = ModelSegment(1, random.Random(1))
    await attach(rig, model, 1)
    model.add(1)
    rig.feed(model.batch(1, 1))
    await rig.commit()
    return rig, model, Placer(rig.state, HostFirstTwoChoices(random.Random(1)), 1 << 20, DataPaths())


async def test_on_a_full_store_no_segment_is_named_and_what_is_there_is_said_to_be() -> None:
    rig, _, placer = await one_segment()
    assert await placed(rig, placer, 1, 2) == (ALREADY_THERE, 0)
    rig.feed(ev.SpaceMeasured(SpaceLevel.FULL, "full"))
    assert await placed(rig, placer, 1, 2) == (ALREADY_THERE, NO_SEGMENT)
    rig.feed(ev.SpaceMeasured(SpaceLevel.NORMAL, ""))
    await attach(rig, ModelSegment(2, random.Random(2)), 2)
    assert (await placed(rig, placer, 2))[0] != NO_SEGMENT


async def test_a_segment_without_its_stream_takes_nothing_from_the_next_request_on() -> None:
    rig, model, placer = await one_segment()
    assert await placed(rig, placer, 2) == (0,)
    rig.feed(ev.StreamLost(1))
    assert await placed(rig, placer, 2) == (NO_SEGMENT,)
    await attach(rig, model, 2)
    assert await placed(rig, placer, 2) == (0,)
    rig.feed(ev.DrainRequested(1, model.segment_id, True))
    assert await placed(rig, placer, 2) == (NO_SEGMENT,)


async def test_what_was_placed_since_a_segment_reported_counts_until_it_reports_again() -> None:
    rig, model, placer = await one_segment()
    await attach(rig, ModelSegment(2, random.Random(2)), 2)
    chosen = set()
    for number in range(10, 40):
        body = PlaceRequest(NS, (100 << 20,), fingerprint(number)).encode()
        chosen |= set(PlaceReply.decode(placer.place(rig.now, body, 0)).segments)
    assert chosen == {0, 1}, "its home is full after eight of them"
    beat = ev.HeartbeatReceived(model.segment_id, model.pool_id, 0, 0)
    rig.feed(beat)
    placer.reported(beat)
    for number in range(100, 105):
        body = PlaceRequest(NS, (100 << 20,), fingerprint(number)).encode()
        assert PlaceReply.decode(placer.place(rig.now, body, 0)).segments == (0,)


async def test_what_lies_on_a_segment_that_is_not_heard_is_not_there_already() -> None:
    rig, model, placer = await one_segment()
    beat = ev.HeartbeatReceived(model.segment_id, model.pool_id, 0, 0)
    rig.feed(ev.Tick(), after_s=1.9)
    assert await placed(rig, placer, 1) == (ALREADY_THERE,)
    rig.feed(ev.Tick(), after_s=0.2)
    assert await placed(rig, placer, 1) == (0,), "its owner is asked, and says itself that it has it"
    rig.feed(beat)
    assert await placed(rig, placer, 1) == (ALREADY_THERE,)
    rig.feed(ev.StreamLost(1))
    rig.feed(beat)
    assert await placed(rig, placer, 1) == (NO_SEGMENT,)
    await attach(rig, model, 2)
    assert await placed(rig, placer, 1) == (ALREADY_THERE,)


async def test_after_a_restart_of_the_master_nothing_is_there_already_until_its_segment_attaches() -> None:
    rig, model, _ = await one_segment()
    await rig.restart()
    placer = Placer(rig.state, HostFirstTwoChoices(random.Random(1)), 1 << 20, DataPaths())
    other = ModelSegment(2, random.Random(2))
    await attach(rig, other, 2)
    rig.feed(ev.HeartbeatReceived(model.segment_id, model.pool_id, 0, 0))
    assert await placed(rig, placer, 1) == (1,)
    await attach(rig, model, 3)
    assert await placed(rig, placer, 1) == (ALREADY_THERE,)


async def test_a_replica_that_is_heard_is_evidence_whatever_its_twin_does() -> None:
    rig, model, placer = await one_segment()
    other = ModelSegment(2, random.Random(2))
    await attach(rig, other, 2)
    other.add(1)
    rig.feed(other.batch(2, 1))
    await rig.commit()
    for silent, heard in ((model, other), (other, model)):
        rig.feed(ev.Tick(), after_s=3.0)
        rig.feed(ev.HeartbeatReceived(heard.segment_id, heard.pool_id, 0, 0))
        assert await placed(rig, placer, 1) == (ALREADY_THERE,), silent


async def test_a_segment_whose_data_port_fails_gets_nothing_while_another_takes_puts() -> None:
    rig = await StateRig().start()
    for number in (1, 2):
        await attach(rig, ModelSegment(number, random.Random(number)), number)
    paths = DataPaths()
    placer = Placer(rig.state, HostFirstTwoChoices(random.Random(1)), 1 << 20, paths)
    paths.avoided(rig.now, 0)
    for index in paths.due(rig.now, (0, 1)):
        paths.probed(rig.now, index, False)
    assert set(await placed(rig, placer, *range(20))) == {1}
    body = PlaceRequest(NS, (100,), fingerprint(1)).encode()
    assert PlaceReply.decode(placer.place(rig.now, body, 0)).segments == (1,), (
        "whatever host the writer is on"
    )
    paths.avoided(rig.now, 1)
    for index in paths.due(rig.now, (0, 1)):
        paths.probed(rig.now, index, False)
    assert set(await placed(rig, placer, *range(20))) <= {0, 1}, "none is reached: one must be tried"


async def test_copies_go_to_hosts_of_their_own_and_are_counted_where_there_are_none() -> None:
    rig = await StateRig().start()
    for number in (1, 2, 3):
        await attach(rig, ModelSegment(number, random.Random(number)), number)
    placer = Placer(rig.state, HostFirstTwoChoices(random.Random(1)), 1 << 20, DataPaths())
    body = PlaceRequest(NS, (100,) * 20, b"".join(map(fingerprint, range(20)))).encode()
    reply = PlaceCopiesReply.decode(placer.place(rig.now, body, NO_SEGMENT, 2))
    assert all(first != copy for first, copy in zip(reply.first.segments, reply.copies, strict=True))
    assert NO_SEGMENT not in reply.copies
    hosts = {s.index: s.record.endpoint.host for s in rig.state.segments}
    apart = sum(
        hosts[first] != hosts[copy] for first, copy in zip(reply.first.segments, reply.copies, strict=True)
    )
    assert placer.copies_beside == 20 - apart
    reply = PlaceCopiesReply.decode(placer.place(rig.now, body, NO_SEGMENT, 4))
    assert len(reply.copies) == 60
    assert reply.copies.count(NO_SEGMENT) == placer.copies_short == 20, "there are three segments"


async def test_what_is_there_once_is_placed_once_more_where_two_are_wanted() -> None:
    rig, _, placer = await one_segment()
    await attach(rig, ModelSegment(2, random.Random(2)), 2)
    body = PlaceRequest(NS, (100,), fingerprint(1)).encode()
    reply = PlaceCopiesReply.decode(placer.place(rig.now, body, 0, 2))
    assert reply == PlaceCopiesReply(PlaceReply((ALREADY_THERE,)), (1,))
    assert await placed(rig, placer, 1) == (ALREADY_THERE,)
