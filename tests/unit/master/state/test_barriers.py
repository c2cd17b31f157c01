"""Who is waited for until a cleared namespace is served by nobody."""

from __future__ import annotations

import random

from kvstore.common.identity import namespace_id
from kvstore.master.state import effects as ef
from kvstore.master.state import events as ev
from kvstore_client.protocol import SegmentState
from support.state_rig import ModelSegment, StateRig, attach

IDENTITY = b'{"model":"m"}'
OLD, NEW, NEWER = (namespace_id(IDENTITY, epoch) for epoch in range(3))


async def opened() -> tuple[StateRig, ModelSegment, ModelSegment]:
    """Two attached segments that have confirmed what they were told when they attached."""
    rig = await StateRig().start()
    rig.feed(ev.NamespaceOpened(1, IDENTITY, "m"))
    await rig.commit()
    models = ModelSegment(1, random.Random(1)), ModelSegment(2, random.Random(2))
    for session, model in enumerate(models, 1):
        await attach(rig, model, session)
        rig.feed(ev.NamespacesRetired(session, rig.state.barriers.newest))
    return rig, *models


async def cleared(rig: StateRig, ns: bytes) -> int:
    """The barrier that the segments are told."""
    rig.feed(ev.NamespaceBumped(9, ns))
    await rig.commit()
    (told,) = rig.take(ef.RetireNamespaces)
    assert told.namespaces == (ns,)
    return told.barrier


def waited_for(rig: StateRig, ns: bytes) -> set[bytes]:
    return {segment.segment_id for segment in rig.state.barriers.waited_for(ns)}


async def test_each_attached_segment_is_waited_for_until_it_confirms() -> None:
    rig, one, two = await opened()
    barrier = await cleared(rig, OLD)
    assert waited_for(rig, OLD) == {one.segment_id, two.segment_id}
    rig.feed(ev.NamespacesRetired(2, barrier))
    assert waited_for(rig, OLD) == {one.segment_id}
    rig.feed(ev.NamespacesRetired(1, barrier))
    assert waited_for(rig, OLD) == set()


async def test_a_confirmation_of_an_earlier_clear_is_none_of_a_later_one() -> None:
    rig, one, _ = await opened()
    first = await cleared(rig, OLD)
    second = await cleared(rig, NEW)
    for session in (1, 2):
        rig.feed(ev.NamespacesRetired(session, first))
    assert waited_for(rig, OLD) == set()
    assert len(waited_for(rig, NEW)) == 2
    rig.feed(ev.NamespacesRetired(2, second))
    assert waited_for(rig, NEW) == {one.segment_id}
    rig.feed(ev.NamespacesRetired(2, first))  # late, and it takes nothing back
    assert waited_for(rig, NEW) == {one.segment_id}


async def test_a_barrier_that_was_never_told_confirms_nothing() -> None:
    rig, *_ = await opened()
    await cleared(rig, OLD)
    rig.feed(ev.NamespacesRetired(1, 1 << 40))
    assert len(waited_for(rig, OLD)) == 2


async def test_what_a_segment_has_confirmed_ends_with_its_stream() -> None:
    rig, one, _ = await opened()
    barrier = await cleared(rig, OLD)
    for session in (1, 2):
        rig.feed(ev.NamespacesRetired(session, barrier))
    rig.feed(ev.StreamLost(1))
    assert waited_for(rig, OLD) == {one.segment_id}
    await attach(rig, one, 3)
    assert waited_for(rig, OLD) == {one.segment_id}
    rig.feed(ev.NamespacesRetired(1, barrier))  # of the stream that is over
    assert waited_for(rig, OLD) == {one.segment_id}
    rig.feed(ev.NamespacesRetired(3, rig.state.barriers.newest))
    assert waited_for(rig, OLD) == set()


async def test_a_silent_segment_is_waited_for_until_it_is_gone() -> None:
    rig, one, _ = await opened()
    barrier = await cleared(rig, OLD)
    rig.feed(ev.NamespacesRetired(2, barrier))
    rig.feed(ev.StreamLost(1))
    rig.feed(ev.Tick(), after_s=20)
    assert rig.segment(one.segment_id).state is SegmentState.SUSPECT
    assert waited_for(rig, OLD) >= {one.segment_id}
    grace_s = rig.limits.membership.grace_s
    rig.feed(ev.Tick(), after_s=grace_s)
    await rig.commit()
    assert rig.segment(one.segment_id).state is SegmentState.GONE
    assert one.segment_id not in waited_for(rig, OLD)


async def test_after_a_fail_over_every_segment_confirms_anew_what_was_cleared_before() -> None:
    rig, one, two = await opened()
    barrier = await cleared(rig, OLD)
    for session in (1, 2):
        rig.feed(ev.NamespacesRetired(session, barrier))
    await rig.restart()
    assert waited_for(rig, OLD) == {one.segment_id, two.segment_id}
    await attach(rig, one, 11)
    assert waited_for(rig, OLD) == {one.segment_id, two.segment_id}
    rig.feed(ev.NamespacesRetired(11, rig.state.barriers.newest))
    assert waited_for(rig, OLD) == {two.segment_id}


async def test_ids_that_were_ended_are_known_by_their_successor_newest_first() -> None:
    rig, *_ = await opened()
    await cleared(rig, OLD)
    await cleared(rig, NEW)
    namespaces = rig.state.namespaces
    assert namespaces.cleared_ids(5) == [NEW, OLD]
    assert namespaces.cleared_ids(1) == [NEW]
    successor = namespaces.successor(OLD)
    assert successor is not None and successor.id == NEWER
    assert namespaces.successor(NEWER) is None
