"""Answers to PLACE."""

from __future__ import annotations

import random

import pytest

from kvstore.master.metadata.store import SpaceLevel
from kvstore.master.state import events as ev
from kvstore.master.state.data_paths import DataPaths
from kvstore.master.state.placed_bytes import ON_THE_WAY_S, PlacedBytes
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


HUGE = 100 << 20  # of a segment of 1 GiB: with eight of them it has no room for a ninth


def homes(rig: StateRig, placer: Placer, numbers: range) -> list[int]:
    """Where objects of HUGE bytes go that are written on the host of segment 0."""
    bodies = [PlaceRequest(NS, (HUGE,), fingerprint(number)).encode() for number in numbers]
    return [PlaceReply.decode(placer.place(rig.now, body, 0)).segments[0] for body in bodies]


async def two_segments() -> tuple[StateRig, ModelSegment, Placer]:
    rig, model, placer = await one_segment()
    await attach(rig, ModelSegment(2, random.Random(2)), 2)
    return rig, model, placer


def report(rig: StateRig, placer: Placer, model: ModelSegment, used_bytes: int) -> None:
    beat = ev.HeartbeatReceived(model.segment_id, model.pool_id, used_bytes, 0)
    rig.feed(beat)
    placer.reported(rig.now, beat)


async def arrive(rig: StateRig, placer: Placer, model: ModelSegment, numbers: range) -> None:
    first = model.last_seq + 1
    model.add(*numbers, length=HUGE)
    rig.feed(model.batch(1, first))
    await rig.commit()
    placer.journaled(model.segment_id)


async def test_what_was_placed_counts_until_it_arrives_whatever_a_segment_reports_meanwhile() -> None:
    rig, model, placer = await two_segments()
    assert homes(rig, placer, range(10, 18)) == [0] * 8
    assert homes(rig, placer, range(20, 28)) != [0] * 8, "its home is full after eight of them"
    report(rig, placer, model, 0)  # taken before any of it had come
    assert homes(rig, placer, range(40, 48)) != [0] * 8, "and still is"


async def test_what_a_segment_reports_counts_though_nobody_placed_it() -> None:
    rig, model, placer = await two_segments()
    assert homes(rig, placer, range(10, 11)) == [0]
    report(rig, placer, model, 9 * HUGE)
    assert homes(rig, placer, range(20, 24)) != [0] * 4


async def test_what_was_placed_counts_whoever_joins_meanwhile() -> None:
    rig, _, placer = await two_segments()
    assert homes(rig, placer, range(10, 18)) == [0] * 8
    await attach(rig, ModelSegment(3, random.Random(3)), 3)
    assert homes(rig, placer, range(20, 28)) != [0] * 8


async def test_what_was_placed_counts_whatever_happens_to_the_stream_of_its_segment() -> None:
    rig, model, placer = await two_segments()
    assert homes(rig, placer, range(10, 18)) == [0] * 8
    rig.feed(ev.StreamLost(1))
    assert homes(rig, placer, range(20, 21)) == [1]
    await attach(rig, model, 3)
    assert homes(rig, placer, range(21, 29)) != [0] * 8


async def test_what_has_arrived_counts_once_before_its_segment_reports_it_and_after() -> None:
    rig, model, placer = await two_segments()
    assert homes(rig, placer, range(10, 14)) == [0] * 4
    await arrive(rig, placer, model, range(10, 14))
    assert homes(rig, placer, range(20, 22)) == [0] * 2
    report(rig, placer, model, 4 * HUGE)
    assert homes(rig, placer, range(22, 24)) == [0] * 2, "eight in all"
    assert homes(rig, placer, range(30, 38)) != [0] * 8


async def test_what_arrived_though_nobody_placed_it_counts_at_once() -> None:
    rig, model, placer = await two_segments()
    assert homes(rig, placer, range(10, 11)) == [0]
    await arrive(rig, placer, model, range(20, 28))
    assert homes(rig, placer, range(30, 34)) != [0] * 4


async def test_what_was_placed_and_never_comes_is_given_up() -> None:
    rig, _, placer = await two_segments()
    assert homes(rig, placer, range(10, 18)) == [0] * 8
    rig.now += ON_THE_WAY_S - 0.1
    assert homes(rig, placer, range(20, 28)) != [0] * 8
    rig.now += 2 * ON_THE_WAY_S
    assert homes(rig, placer, range(40, 48)) == [0] * 8


def test_however_many_puts_are_on_their_way_few_sums_are_kept() -> None:
    placed = PlacedBytes()
    for number in range(100_000):
        placed.placed(number / 1000, 1)
    assert len(placed._sums) <= ON_THE_WAY_S / 0.25 + 2
    assert placed.total == pytest.approx(ON_THE_WAY_S * 1000, rel=0.1)
    placed.arrived(placed.total + 5)
    assert placed.total == 0
    assert not placed._sums


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
