"""A standby that is elected: what it leads with is all that was ever committed, however far behind it was."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from kvstore.common.errors import KvstoreError
from kvstore.common.identity import namespace_id
from kvstore.master.directory import Directory
from kvstore.master.ha import replica as replica_module
from kvstore.master.ha.replica import Replica
from kvstore.master.metadata.store import Fence
from kvstore.master.metrics import MasterMetrics
from kvstore.master.roles import Roles, Standby
from kvstore.master.state import events as ev
from kvstore.master.state.directory_state import Recovered, StateLimits
from kvstore.master.state.placement import POLICIES
from kvstore.master.state.replay import Replay
from kvstore_client._native import DirectoryIndex
from support.master_peers import until
from support.memory_replicated_store import MemoryReplicatedStore
from support.state_rig import ModelSegment, StateRig, attach, fingerprint

IDENTITY = b'{"model":"m"}'
OLD, NEW = namespace_id(IDENTITY, 0), namespace_id(IDENTITY, 1)


class Rig:
    def __init__(self) -> None:
        self.store = MemoryReplicatedStore()
        self.roles = Roles()
        self.metrics = MasterMetrics()
        self.failures: list[KvstoreError] = []
        self.model = ModelSegment(1, random.Random(1))
        self.replica = Replica(
            self.store, self.roles, self.metrics, self._leads, self.failures.append, token=""
        )

    def _leads(self, fence: Fence, recovered: Recovered) -> Directory:
        return Directory(
            self.store,
            fence,
            recovered,
            StateLimits(),
            POLICIES["host-first"](random.Random(1)),
            self.metrics,
            run_bytes=1 << 20,
            on_fenced=lambda error: None,
            on_failed=self.failures.append,
        )


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A standby that has read a cluster with one namespace; since then three pages were added and the namespace was cleared."""
    rig = Rig()
    leader = await StateRig(store=rig.store).start()
    leader.feed(ev.NamespaceOpened(1, IDENTITY, "m"))
    await attach(leader, rig.model, 1)
    await leader.commit()
    await rig.replica.start()
    rig.store.hold_updates()
    rig.model.add(1, 2, 3)
    leader.feed(rig.model.batch(1, 1))
    leader.feed(ev.NamespaceBumped(2, OLD))
    await leader.commit()
    yield rig
    await rig.replica.stop()
    assert rig.failures == []


def leads_with_everything(rig: Rig) -> None:
    directory = rig.roles.directory
    assert directory is not None
    assert directory.index.entry_count == 3
    assert (directory.is_current(OLD), directory.is_current(NEW)) == (False, True)


async def test_a_standby_that_lags_applies_everything_before_it_leads(rig: Rig) -> None:
    followed = rig.roles.backend.index
    rig.store.elect()
    await asyncio.sleep(0)
    assert rig.roles.directory is None and rig.roles.backend.is_current(OLD), (
        "it is behind, and does not lead yet"
    )
    rig.store.release_updates()
    await until(lambda: rig.roles.directory is not None, "it leads")
    leads_with_everything(rig)
    assert rig.roles.backend.index is followed, "it has read everything a second time"


async def test_a_leader_whose_follower_does_not_catch_up_in_time_reads_the_records_itself(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "CATCH_UP_TIMEOUT_S", 0.05)
    rig.store.elect()
    await until(lambda: rig.roles.directory is not None, "it leads")
    leads_with_everything(rig)


async def test_a_follower_that_dies_of_a_bug_is_not_overlooked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Replay, change: object) -> bytes | None:
        raise TypeError("a bug")

    monkeypatch.setattr(Replay, "follow", broken)
    rig.store.release_updates()
    await until(lambda: bool(rig.failures), "the failure is told")
    assert "follower" in str(rig.failures[0]) and "a bug" in str(rig.failures[0])
    rig.failures.clear()


async def test_a_standby_does_not_answer_for_a_namespace_that_was_cleared(rig: Rig) -> None:
    standby = rig.roles.backend
    assert isinstance(standby, Standby)
    assert (standby.is_current(OLD), standby.is_current(NEW)) == (True, False)
    rig.store.release_updates()
    await until(lambda: standby.is_current(NEW), "it has heard of the clear")
    assert not standby.is_current(OLD)
    assert (await standby.open_namespace(IDENTITY, "m")).ns == NEW
    assert [view.id for view in standby.namespaces()] == [NEW]


async def test_a_leader_that_is_one_no_more_gives_its_directory_back_once_it_has_read_another(
    rig: Rig,
) -> None:
    rig.store.release_updates()
    rig.store.elect()
    await until(lambda: rig.roles.directory is not None, "it leads")
    first = rig.roles.backend.index
    rig.store.end_tenure()
    await until(lambda: rig.roles.directory is None, "it leads no more")
    assert rig.roles.backend.index.entry_count == 3, "it is read from until another is there"
    await until(lambda: rig.roles.backend.index is not first, "it has read the records again")
    await until(lambda: first.entry_count == 0, "what it had is given back")
    assert first.memory_bytes < 1 << 20
    assert rig.roles.backend.index.entry_count == 3


async def test_a_leader_that_read_the_records_itself_gives_back_what_it_followed_with(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "CATCH_UP_TIMEOUT_S", 0.05)
    rig.model.add(4)
    followed = rig.roles.backend.index
    followed.apply(0, rig.model.batch(1, 4).groups)
    rig.store.elect()
    await until(lambda: rig.roles.directory is not None, "it leads")
    await until(lambda: followed.entry_count == 0, "what it followed with is given back")
    leads_with_everything(rig)


async def test_a_standby_drops_the_entries_of_a_segment_that_left_and_those_of_its_former_memory() -> None:
    rig = Rig()
    leader = await StateRig(store=rig.store).start()
    leaves, restarts = rig.model, ModelSegment(2, random.Random(2))
    for session, model in ((1, leaves), (2, restarts)):
        await attach(leader, model, session)
        model.add(10 * session, 10 * session + 1)
        leader.feed(model.batch(session, 1))
    await leader.commit()
    await rig.replica.start()
    try:
        index = rig.roles.backend.index
        assert index.entry_count == 4
        leader.feed(ev.SegmentLeaving(1, "it is stopped"))
        await leader.commit()
        await until(lambda: index.entry_count == 2, "its entries are gone")
        assert content(rig, index) == restarts.content()
        leader.feed(ev.StreamLost(2))
        leader.now += 60
        restarts.new_pool()
        await attach(leader, restarts, 3)
        await until(lambda: index.entry_count == 0, "what lay in its former memory is gone")
    finally:
        await rig.replica.stop()
    assert rig.failures == []


# ---- a log that is to be read again -------------------------------------------------------------------------


@pytest.fixture
async def moved() -> AsyncIterator[tuple[Rig, StateRig]]:
    """A standby that follows; the segment's log has just been replaced by an inventory, and reading it meets an error."""
    rig = Rig()
    leader = await StateRig(store=rig.store).start()
    await attach(leader, rig.model, 1)
    rig.model.add(*range(50))
    leader.feed(rig.model.batch(1, 1))
    await leader.commit()
    await rig.replica.start()
    await until(lambda: rig.replica.readiness[0], "it has caught up")
    rig.store.failing_reads = 3
    rig.model.remove(*range(10))
    rig.model.add(*range(50, 60))
    for chunk in rig.model.inventory(1, chunk_entries=7):
        leader.feed(chunk)
    await leader.commit()
    await until(lambda: rig.store.failing_reads < 3, "it has tried to read it")
    yield rig, leader
    await rig.replica.stop()
    assert rig.failures == []


def content(rig: Rig, index: DirectoryIndex) -> dict[bytes, int]:
    return {fp: 100 for fp in map(fingerprint, range(200)) if index.find(fp) is not None}


def gauge(rig: Rig, name: str) -> float | None:
    return rig.metrics.registry.get_sample_value(f"kvstore_master_{name}")


async def test_a_standby_that_could_not_read_a_replaced_log_serves_what_it_had_and_reads_it_again(
    moved: tuple[Rig, StateRig],
) -> None:
    rig, leader = moved
    assert rig.replica.readiness == (False, "the standby has not caught up yet")
    assert gauge(rig, "logs_to_reload") == 1
    before = content(rig, rig.roles.backend.index)
    assert set(map(fingerprint, range(50))) <= before.keys(), "pages were lost meanwhile"
    # What comes meanwhile is not lost either.
    first = rig.model.last_seq + 1
    rig.model.add(60, 61)
    rig.model.remove(50)
    leader.feed(rig.model.batch(1, first))
    await leader.commit()
    await until(lambda: rig.replica.readiness[0], "it has read it")
    assert rig.store.failing_reads == 0
    assert content(rig, rig.roles.backend.index) == rig.model.content()
    assert (gauge(rig, "logs_to_reload"), gauge(rig, "index_entries")) == (0, 51)
    first = rig.model.last_seq + 1
    rig.model.add(62)
    leader.feed(rig.model.batch(1, first))
    await leader.commit()
    await until(lambda: content(rig, rig.roles.backend.index) == rig.model.content(), "it follows on")


async def test_a_standby_that_is_elected_before_it_could_read_a_replaced_log_leads_with_all_of_it(
    moved: tuple[Rig, StateRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, _ = moved
    rig.store.elect()
    await until(lambda: rig.roles.directory is not None, "it leads")
    directory = rig.roles.directory
    assert directory is not None
    assert content(rig, directory.index) == rig.model.content()
    segment = directory.state.segments.get(rig.model.segment_id)
    assert segment is not None
    assert (segment.durable_seq, segment.damaged) == (rig.model.last_seq, False)


async def test_a_log_that_is_replaced_again_before_it_could_be_read_is_read_as_it_is_then(
    moved: tuple[Rig, StateRig],
) -> None:
    rig, leader = moved
    rig.store.hold_updates()
    rig.model.add(*range(70, 90))
    for chunk in rig.model.inventory(1, chunk_entries=9):
        leader.feed(chunk)
    await leader.commit()
    # It reads a later moment than it has followed to: what it finds belongs to a record that it does not know yet.
    ends_at = asyncio.get_running_loop().time() + 0.5
    await until(lambda: asyncio.get_running_loop().time() > ends_at, "more attempts")
    assert set(map(fingerprint, range(10, 50))) <= content(rig, rig.roles.backend.index).keys()
    assert not rig.replica.readiness[0]
    rig.store.release_updates()
    await until(lambda: rig.replica.readiness[0], "it has read it")
    assert content(rig, rig.roles.backend.index) == rig.model.content()
