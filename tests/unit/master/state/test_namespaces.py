"""Namespaces in the master's state machine."""

from __future__ import annotations

import random

import pytest

from kvstore.common.errors import RefusedError
from kvstore.common.identity import canonical_json, check_identity, identity_hash, namespace_id
from kvstore.master.metadata.store import KeyUpdate
from kvstore.master.ports.health import limit_problems
from kvstore.master.recovery import EPOCH_FLOOR_STEP
from kvstore.master.state import effects as ef
from kvstore.master.state import events as ev
from kvstore.master.state import layout, namespaces
from kvstore.master.state.changes import NamespaceRemoved
from kvstore.master.state.directory_state import StateLimits
from kvstore.master.state.layout import NamespaceRecord
from kvstore.master.state.replay import Replay
from kvstore_client.protocol import Status
from kvstore_client.protocol.journal import JournalGroup, JournalOp, encode_groups
from support.state_rig import ModelSegment, StateRig, attach, fingerprint

IDENTITY = b'{"dtype":"bf16","model":"m"}'
OTHER = b'{"model":"other"}'


async def test_an_open_is_answered_once_it_is_durable_and_shared_by_those_who_wait() -> None:
    rig = await StateRig().start()
    rig.feed(ev.NamespaceOpened(1, IDENTITY, "m"))
    rig.feed(ev.NamespaceOpened(2, IDENTITY, "m"))
    assert len(rig.pending) == 1
    assert rig.take(ef.NamespaceReady) == []
    ns = namespace_id(IDENTITY, 0)
    assert not rig.state.namespaces.is_current(ns)
    await rig.commit()
    assert rig.take(ef.NamespaceReady) == [ef.NamespaceReady(1, ns, 0), ef.NamespaceReady(2, ns, 0)]
    assert rig.state.namespaces.is_current(ns)
    rig.feed(ev.NamespaceOpened(3, IDENTITY, "m"))
    assert rig.take(ef.NamespaceReady) == [ef.NamespaceReady(3, ns, 0)]
    assert not rig.pending


async def test_a_bump_makes_one_new_epoch_however_many_ask() -> None:
    rig = await StateRig().start()
    rig.feed(ev.NamespaceOpened(1, IDENTITY, "m"))
    await rig.commit()
    old, new = namespace_id(IDENTITY, 0), namespace_id(IDENTITY, 1)
    rig.take(ef.NamespaceReady)
    rig.feed(ev.NamespaceBumped(2, old))
    rig.feed(ev.NamespaceBumped(3, old))
    await rig.commit()
    rig.feed(ev.NamespaceBumped(4, old))
    assert [(r.request, r.ns, r.epoch) for r in rig.take(ef.NamespaceReady)] == [
        (n, new, 1) for n in (2, 3, 4)
    ]
    assert rig.take(ef.RetireNamespaces) == [ef.RetireNamespaces((old,), barrier=1)]
    assert not rig.state.namespaces.is_current(old)
    assert rig.state.namespaces.is_current(new)
    await rig.restart()
    assert not rig.state.namespaces.is_current(old)
    assert rig.state.namespaces.is_current(new)
    rig.feed(ev.NamespaceBumped(5, old))
    assert rig.take(ef.NamespaceReady) == [ef.NamespaceReady(5, new, 1)]


async def test_bumping_an_unknown_namespace_is_refused() -> None:
    rig = await StateRig().start()
    rig.feed(ev.NamespaceBumped(1, b"unknown!"))
    (refused,) = rig.take(ef.RequestRefused)
    assert refused.status is Status.STALE_NAMESPACE


async def test_an_open_or_bump_that_can_not_be_stored_is_refused_and_can_be_tried_again() -> None:
    rig = await StateRig().start()
    rig.feed(ev.NamespaceOpened(1, IDENTITY, "m"))
    await rig.fail_commits()
    assert [r.status for r in rig.take(ef.RequestRefused)] == [Status.UNAVAILABLE]
    rig.feed(ev.NamespaceOpened(2, IDENTITY, "m"))
    await rig.commit()
    ns = namespace_id(IDENTITY, 0)
    rig.feed(ev.NamespaceBumped(3, ns))
    await rig.fail_commits()
    assert [r.status for r in rig.take(ef.RequestRefused)] == [Status.UNAVAILABLE]
    assert rig.state.namespaces.is_current(ns)
    rig.feed(ev.NamespaceBumped(4, ns))
    await rig.commit()
    assert rig.state.namespaces.is_current(namespace_id(IDENTITY, 1))


async def test_namespaces_over_the_limit_are_refused() -> None:
    rig = await StateRig(StateLimits(namespaces_max=1)).start()
    rig.feed(ev.NamespaceOpened(1, IDENTITY, "m"))
    rig.feed(ev.NamespaceOpened(2, b'{"model":"other"}', "o"))
    (refused,) = rig.take(ef.RequestRefused)
    assert refused.request == 2
    assert "namespaces_max" in refused.text


async def test_past_epochs_of_a_namespace_whose_record_was_lost_never_come_back() -> None:
    rig = await StateRig().start()
    rig.feed(ev.NamespaceOpened(1, IDENTITY, "m"))
    await rig.commit()
    rig.feed(ev.NamespaceBumped(2, namespace_id(IDENTITY, 0)))
    await rig.commit()
    await rig.write_raw(layout.namespace_key(identity_hash(IDENTITY)), b"scrambled")
    await rig.restart()
    assert rig.corrupt == ["namespace"]
    rig.feed(ev.NamespaceOpened(3, IDENTITY, "m"))
    await rig.commit()
    (ready,) = rig.take(ef.NamespaceReady)
    assert ready.epoch == EPOCH_FLOOR_STEP
    rig.corrupt.clear()
    await rig.restart()
    assert rig.corrupt == []
    assert rig.state.namespaces.is_current(ready.ns)


@pytest.mark.parametrize(
    "identity",
    [
        b'{"b":1,"a":2}',
        b'{"a": 1}',
        b'{"a":1,"a":2}',
        b'{"a":"\\u00e4"}',
        b'{"a":NaN}',
        b"[1]",
        b"1",
        b"",
        b"\xff",
        b"{" * 5000,
        b'{"a":1}\n',
    ],
)
def test_identities_that_are_not_canonical_are_refused(identity: bytes) -> None:
    with pytest.raises(RefusedError) as refused:
        check_identity(identity)
    assert refused.value.status is Status.BAD_REQUEST


def test_canonical_identities_are_accepted() -> None:
    for value in ({}, {"a": 1, "b": [1.5, None, True]}, {"ä": "käse"}):
        check_identity(canonical_json(value))
    with pytest.raises(RefusedError) as refused:
        check_identity(b"{" + b" " * (64 << 10) + b"}")
    assert refused.value.status is Status.TOO_LARGE


async def test_one_waiter_too_many_for_a_namespace_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "WAITERS_MAX", 3)
    rig = await StateRig().start()
    for request in range(4):
        rig.feed(ev.NamespaceOpened(request, IDENTITY, "m"))
    (refused,) = rig.take(ef.RequestRefused)
    assert (refused.request, refused.status) == (3, Status.UNAVAILABLE)
    await rig.commit()
    assert [ready.request for ready in rig.take(ef.NamespaceReady)] == [0, 1, 2]


async def test_a_full_cluster_opens_what_it_has_and_again_after_one_was_forgotten() -> None:
    rig = await StateRig(StateLimits(namespaces_max=1)).start()
    rig.feed(ev.NamespaceOpened(1, IDENTITY, "m"))
    await rig.commit()
    assert rig.state.namespaces.full and "kvstore admin forget" in limit_problems(rig.state)[0]
    rig.feed(ev.NamespaceOpened(2, OTHER, "o"))
    assert [r.request for r in rig.take(ef.RequestRefused)] == [2]
    assert rig.reports().count("namespace_refused") == 1
    rig.feed(ev.NamespaceForgotten(3, namespace_id(IDENTITY, 0)))
    rig.feed(ev.NamespaceOpened(4, OTHER, "o"))
    assert [r.request for r in rig.take(ef.RequestRefused)] == [4], "it is not gone before that is durable"
    await rig.commit()
    assert rig.take(ef.NamespaceGone) == [ef.NamespaceGone(3)]
    assert limit_problems(rig.state) == []
    rig.feed(ev.NamespaceOpened(5, OTHER, "o"))
    await rig.commit()
    assert [ready.request for ready in rig.take(ef.NamespaceReady)] == [1, 5]
    await rig.restart()
    assert [n.identity for n in rig.state.namespaces] == [OTHER]


async def test_what_a_forgotten_namespace_held_never_comes_back() -> None:
    rig = await StateRig().start()
    rig.feed(ev.NamespaceOpened(1, IDENTITY, "m"))
    rig.feed(ev.NamespaceOpened(2, OTHER, "o"))
    await rig.commit()
    for bump in range(3):
        rig.feed(ev.NamespaceBumped(10 + bump, namespace_id(IDENTITY, bump)))
        await rig.commit()
    past = {namespace_id(IDENTITY, epoch) for epoch in range(4)}
    # The one with the lower epoch last: its floor must not undo the other's.
    rig.feed(ev.NamespaceForgotten(20, namespace_id(IDENTITY, 3)))
    rig.feed(ev.NamespaceForgotten(21, namespace_id(OTHER, 0)))
    await rig.commit()
    assert namespace_id(IDENTITY, 3) in rig.take(ef.RetireNamespaces)[-2].namespaces
    assert not any(map(rig.state.namespaces.is_current, past))
    rig.feed(ev.NamespaceBumped(30, namespace_id(IDENTITY, 1)))
    assert [r.status for r in rig.take(ef.RequestRefused)] == [Status.STALE_NAMESPACE]
    for restarted in (False, True):
        if restarted:
            await rig.restart()
        rig.feed(ev.NamespaceOpened(31, IDENTITY, "m"))
        await rig.commit()
        (ready,) = [r for r in rig.take(ef.NamespaceReady) if r.request == 31]
        assert ready.epoch >= 4 and ready.ns not in past


async def test_a_namespace_that_is_being_forgotten_is_neither_opened_nor_cleared_nor_forgotten_twice() -> (
    None
):
    rig = await StateRig().start()
    ns = namespace_id(IDENTITY, 0)
    rig.feed(ev.NamespaceOpened(1, IDENTITY, "m"))
    await rig.commit()
    rig.feed(ev.NamespaceForgotten(2, ns))
    rig.feed(ev.NamespaceOpened(3, IDENTITY, "m"))
    rig.feed(ev.NamespaceBumped(4, ns))
    rig.feed(ev.NamespaceForgotten(5, ns))
    refused = [(r.request, r.status) for r in rig.take(ef.RequestRefused)]
    assert refused == [(n, Status.UNAVAILABLE) for n in (3, 4, 5)]
    await rig.fail_commits()
    assert [r.request for r in rig.take(ef.RequestRefused)] == [2]
    assert rig.state.namespaces.is_current(ns)
    rig.feed(ev.NamespaceForgotten(6, b"unknown!"))
    assert [(r.request, r.status) for r in rig.take(ef.RequestRefused)] == [(6, Status.MISS)]


def test_a_follower_forgets_it_too() -> None:
    replay = Replay(lambda record: None)
    record = NamespaceRecord(IDENTITY, "m", 2)
    key = layout.namespace_key(identity_hash(IDENTITY))
    replay.follow(KeyUpdate(key, record.encode()))
    replay.follow(
        KeyUpdate(layout.namespace_key(identity_hash(OTHER)), NamespaceRecord(OTHER, "o", 0).encode())
    )
    replay.follow(KeyUpdate(key, None))
    assert list(replay.namespaces) == [OTHER]
    assert list(replay.current) == [namespace_id(OTHER, 0)]


def test_a_follower_that_can_not_read_what_a_namespace_has_become_answers_for_its_old_epoch_no_more() -> None:
    replay = Replay(lambda record: None)
    key = layout.namespace_key(identity_hash(IDENTITY))
    replay.follow(KeyUpdate(key, NamespaceRecord(IDENTITY, "m", 2).encode()))
    replay.follow(KeyUpdate(key, b"scrambled"))
    assert list(replay.lost_namespaces) == [key]
    assert not replay.namespaces and not replay.current
    replay.follow(KeyUpdate(key, NamespaceRecord(IDENTITY, "m", 4).encode()))
    assert not replay.lost_namespaces
    assert list(replay.current) == [namespace_id(IDENTITY, 4)]


async def test_who_waits_while_the_store_fails_is_refused_in_time_and_what_was_asked_for_is_stored_later() -> (
    None
):
    rig = await StateRig().start()
    rig.feed(ev.NamespaceOpened(1, IDENTITY, "m"))
    rig.feed(ev.CommitStalled("disk on fire", 10.0))
    (refused,) = rig.take(ef.RequestRefused)
    assert (refused.request, refused.status) == (1, Status.UNAVAILABLE)
    assert "disk on fire" in refused.text
    await rig.commit()
    assert rig.take(ef.NamespaceReady) == []
    rig.feed(ev.NamespaceOpened(2, IDENTITY, "m"))
    (ready,) = rig.take(ef.NamespaceReady)
    assert (ready.request, ready.ns) == (2, namespace_id(IDENTITY, 0))


async def test_so_many_past_ids_are_known_and_older_ones_are_simply_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(namespaces, "PAST_IDS_MAX", 3)
    rig = await StateRig().start()
    rig.feed(ev.NamespaceOpened(1, IDENTITY, "m"))
    await rig.commit()
    for epoch in range(5):
        rig.feed(ev.NamespaceBumped(2, namespace_id(IDENTITY, epoch)))
        await rig.commit()
    rig.take(ef.NamespaceReady)
    for epoch in range(5):
        rig.feed(ev.NamespaceBumped(10 + epoch, namespace_id(IDENTITY, epoch)))
    assert [ready.request for ready in rig.take(ef.NamespaceReady)] == [12, 13, 14]
    assert {refused.request for refused in rig.take(ef.RequestRefused)} == {10, 11}


async def test_a_namespace_that_holds_nothing_and_that_nobody_asks_for_is_forgotten() -> None:
    rig = await StateRig(StateLimits(namespace_unused_s=100.0)).start()
    rig.feed(ev.NamespaceOpened(1, IDENTITY, "m"))
    rig.feed(ev.NamespaceOpened(2, OTHER, "o"))
    await rig.commit()
    ns, other = namespace_id(IDENTITY, 0), namespace_id(OTHER, 0)
    rig.feed(ev.Tick(), after_s=99.0)
    assert not rig.pending
    rig.state.namespaces.used(rig.now, other)
    rig.feed(ev.Tick(), after_s=60.0)
    await rig.commit()
    assert not rig.state.namespaces.is_current(ns)
    assert rig.state.namespaces.is_current(other)
    assert {"namespace_expired", "namespace_forgotten"} <= set(rig.reports())
    # Whoever comes back gets another epoch: what may be left of the old one stays unreachable.
    rig.feed(ev.NamespaceOpened(3, IDENTITY, "m"))
    await rig.commit()
    assert rig.take(ef.NamespaceReady)[-1].epoch == 1
    # Another master counts anew.
    await rig.restart()
    rig.feed(ev.Tick(), after_s=99.0)
    assert not rig.pending


async def test_a_namespace_that_holds_something_is_never_forgotten_by_itself() -> None:
    rig = await StateRig(StateLimits(namespace_unused_s=100.0)).start()
    rig.feed(ev.NamespaceOpened(1, IDENTITY, "m"))
    await rig.commit()
    ns = namespace_id(IDENTITY, 0)
    model = ModelSegment(1, random.Random(1))
    await attach(rig, model, 1)
    group = JournalGroup(JournalOp.ADD, ns, fingerprint(1), (100,))
    rig.feed(ev.JournalReceived(1, 1, 1, encode_groups([group])))
    await rig.commit()
    rig.feed(ev.Tick(), after_s=1000.0)
    assert not any(isinstance(each.change, NamespaceRemoved) for each in rig.pending)


async def test_only_some_are_forgotten_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "EXPIRED_MAX", 3)
    rig = await StateRig(StateLimits(namespace_unused_s=100.0)).start()
    for number in range(8):
        rig.feed(ev.NamespaceOpened(number, b'{"model":"%d"}' % number, "m"))
    await rig.commit()
    left = []
    for _ in range(4):
        rig.feed(ev.Tick(), after_s=200.0)
        await rig.commit()
        left.append(len(rig.state.namespaces))
    assert left == [5, 2, 0, 0]
