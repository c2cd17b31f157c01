"""Quotas in the master's state machine, and in what it stores."""

from __future__ import annotations

import pytest

from kvstore.common.errors import CorruptRecordError
from kvstore.common.identity import namespace_id
from kvstore.master.metadata.store import KeyUpdate
from kvstore.master.state import effects as ef
from kvstore.master.state import events as ev
from kvstore.master.state import layout
from kvstore.master.state import quotas as quotas_module
from kvstore.master.state.layout import QUOTA_BYTES_MAX, QuotaKind, QuotaRecord
from kvstore.master.state.quotas import tag_of
from kvstore.master.state.replay import Replay
from kvstore_client.protocol import Status
from support.state_rig import StateRig

IDENTITY = b'{"model":"m","tag":"team"}'
OTHER = b'{"model":"other","tag":"team"}'
ALONE = b'{"model":"alone"}'


async def opened() -> StateRig:
    rig = await StateRig().start()
    for number, identity in enumerate((IDENTITY, OTHER, ALONE)):
        rig.feed(ev.NamespaceOpened(number, identity, "m"))
    await rig.commit()
    return rig


def members(rig: StateRig) -> dict[bytes, tuple[int, set[bytes]]]:
    """Limit and namespaces of each quota, by its subject."""
    groups = rig.state.quotas.groups()
    return {g.quota.subject: (g.quota.limit_bytes, set(g.namespaces)) for g in groups}


async def test_a_quota_counts_once_it_is_durable_and_survives_a_restart() -> None:
    rig = await opened()
    rig.feed(ev.QuotaRequested(7, QuotaKind.NAMESPACE, IDENTITY, 100))
    assert members(rig) == {}
    assert rig.take(ef.QuotaReady) == []
    await rig.commit()
    assert rig.take(ef.QuotaReady) == [ef.QuotaReady(7)]
    there = {IDENTITY: (100, {namespace_id(IDENTITY, 0)})}
    assert members(rig) == there
    await rig.restart()
    assert members(rig) == there
    rig.feed(ev.QuotaRequested(8, QuotaKind.NAMESPACE, IDENTITY, 0))
    await rig.commit()
    assert members(rig)[IDENTITY][0] == 0
    rig.feed(ev.QuotaRequested(9, QuotaKind.NAMESPACE, IDENTITY, None))
    await rig.commit()
    await rig.restart()
    assert members(rig) == {}


async def test_a_tag_is_of_all_namespaces_that_have_it_whenever_they_come() -> None:
    rig = await opened()
    rig.feed(ev.QuotaRequested(7, QuotaKind.TAG, b"team", 100))
    await rig.commit()
    first = {namespace_id(IDENTITY, 0), namespace_id(OTHER, 0)}
    assert members(rig) == {b"team": (100, first)}
    late = b'{"model":"late","tag":"team"}'
    rig.feed(ev.NamespaceOpened(8, late, "m"))
    rig.feed(ev.NamespaceBumped(9, namespace_id(OTHER, 0)))
    rig.feed(ev.NamespaceForgotten(10, namespace_id(IDENTITY, 0)))
    await rig.commit()
    assert members(rig) == {b"team": (100, {namespace_id(late, 0), namespace_id(OTHER, 1)})}
    assert rig.state.quotas.concern(namespace_id(OTHER, 1))
    assert not rig.state.quotas.concern(namespace_id(OTHER, 0))
    assert not rig.state.quotas.concern(namespace_id(ALONE, 0))


async def test_a_quota_that_is_not_there_is_not_removed() -> None:
    rig = await opened()
    (refused,) = rig.feed(ev.QuotaRequested(7, QuotaKind.TAG, b"team", None))
    assert isinstance(refused, ef.RequestRefused)
    assert refused.status == Status.MISS


async def test_there_are_no_more_quotas_than_their_most_and_those_there_can_be_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas_module, "QUOTAS_MAX", 2)
    rig = await opened()
    rig.feed(ev.QuotaRequested(1, QuotaKind.TAG, b"a", 1))
    rig.feed(ev.QuotaRequested(2, QuotaKind.TAG, b"b", 1))
    (refused,) = rig.feed(ev.QuotaRequested(3, QuotaKind.TAG, b"c", 1))
    assert isinstance(refused, ef.RequestRefused)
    assert "its most of 2 quotas" in refused.text
    rig.feed(ev.QuotaRequested(4, QuotaKind.TAG, b"b", 5))
    await rig.commit()
    assert members(rig)[b"b"] == (5, set())


async def test_a_store_that_fails_is_told_and_nothing_has_changed() -> None:
    rig = await opened()
    rig.feed(ev.QuotaRequested(7, QuotaKind.TAG, b"team", 100))
    rig.feed(ev.CommitStalled("no", 10.0))
    assert [refused.request for refused in rig.take(ef.RequestRefused)] == [7]
    await rig.fail_commits()
    assert [refused.request for refused in rig.take(ef.RequestRefused)] == [7]
    assert members(rig) == {}


@pytest.mark.parametrize("kind", list(QuotaKind))
def test_a_record_says_what_it_was_made_of_and_no_other_is_believed(kind: QuotaKind) -> None:
    record = QuotaRecord(kind, "ü".encode(), QUOTA_BYTES_MAX)
    assert QuotaRecord.decode(record.encode()) == record
    assert layout.quota_key(kind, b"x") != layout.quota_key(kind, b"y")
    with pytest.raises(CorruptRecordError):
        QuotaRecord.decode(QuotaRecord(kind, b"", QUOTA_BYTES_MAX + 1).encode())
    with pytest.raises(CorruptRecordError):
        QuotaRecord.decode(record.encode()[:-1])


def test_a_follower_has_the_quotas_that_there_are_and_a_corrupt_one_is_none() -> None:
    corrupt: list[str] = []
    replay = Replay(lambda record: corrupt.append(record.kind))
    key = layout.quota_key(QuotaKind.TAG, b"team")
    record = QuotaRecord(QuotaKind.TAG, b"team", 100)
    replay.follow(KeyUpdate(key, record.encode()))
    assert list(replay.quotas.values()) == [record]
    replay.follow(KeyUpdate(key, b"?"))
    assert (list(replay.quotas), corrupt) == ([], ["quota"])
    replay.follow(KeyUpdate(key, record.encode()))
    replay.follow(KeyUpdate(key, None))
    assert not replay.quotas


def test_what_is_no_identity_has_no_tag() -> None:
    for identity in (b"", b"[]", b"1", b'{"tag":5}', b"{}", b"\xff"):
        assert tag_of(identity) == b""
    assert tag_of(IDENTITY) == b"team"
