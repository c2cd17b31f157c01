"""A standby's right to answer reads lasts as long as its entry in the store, by its own clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from kvstore.common.errors import RefusedError, StoreError
from kvstore.master.ha import attendance_keeper
from kvstore.master.ha.attendance_keeper import AttendanceKeeper
from kvstore.master.metadata.attendance import NoEntriesError, Stay
from kvstore.master.roles import Roles, Standby
from kvstore.master.state.replay import Replay
from support.master_peers import until

LASTS_S = 0.6


class Entries:
    """The store's side: an entry ends when it was not renewed in time; `away`: nothing answers."""

    def __init__(self) -> None:
        self.revision = 10
        self.away = False
        self.ends_at = 0.0
        self.value = -1
        self.entered = 0
        self.refused = 0
        self.is_full = False
        self.renewed = 0
        self.answer_s = 0.0  # how long an answer is on its way

    def _answer(self) -> None:
        if self.away:
            self.refused += 1
            raise StoreError("away")

    async def enter(self, address: str, lasts_s: float) -> Stay:
        self._answer()
        if self.is_full:
            raise NoEntriesError("no room")
        self.entered += 1
        self.revision += 1
        self.value, self.ends_at = 0, time.monotonic() + lasts_s
        return Stay(address, self.entered, self.revision, lasts_s)

    async def renew(self, stay: Stay, timeout_s: float) -> float:
        self._answer()
        if stay.lease_id != self.entered or time.monotonic() >= self.ends_at:
            return 0.0
        self.ends_at = time.monotonic() + LASTS_S
        await asyncio.sleep(self.answer_s)
        self.renewed += 1
        return LASTS_S

    async def confirm(self, stay: Stay, revision: int) -> None:
        self._answer()
        self.value = revision

    async def leave(self, stay: Stay) -> None:
        self._answer()
        self.ends_at = 0.0

    async def confirmed(self) -> dict[str, int]:
        return {"here": self.value}

    async def changed_at(self, key: bytes) -> int:
        return 0


class Rig:
    def __init__(self) -> None:
        self.entries = Entries()
        self.roles = Roles()
        self.keeper = AttendanceKeeper(self.entries, self.roles, "here", LASTS_S)
        self.roles.stand_by(Standby(self.roles, Replay(lambda record: None), 1))

    @property
    def answers(self) -> bool:
        try:
            return self.roles.backend is not None
        except RefusedError:
            return False


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(attendance_keeper, "RETRY_DELAY_S", 0.02)
    rig = Rig()
    tasks = [asyncio.create_task(rig.keeper.confirm_forever()), asyncio.create_task(rig.keeper.run())]
    yield rig
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_nothing_is_answered_before_the_entry_is_made_and_what_was_there_then_is_read(rig: Rig) -> None:
    assert not rig.answers
    await rig.keeper.enter()
    assert not rig.answers
    rig.keeper.applied(10, True)  # read before the entry was made
    assert not rig.answers
    rig.keeper.applied(11, True)
    assert rig.answers


async def test_what_is_applied_is_confirmed(rig: Rig) -> None:
    await rig.keeper.enter()
    assert rig.entries.value == 0
    rig.keeper.applied(12, False)
    await until(lambda: rig.entries.value == 12, "the first state is confirmed")
    rig.keeper.applied(15, True)
    await until(lambda: rig.entries.value == 15, "a change of namespaces is confirmed")
    rig.entries.away = True
    rig.keeper.applied(17, True)
    await until(lambda: rig.entries.refused > 0, "it has tried in vain")
    rig.entries.away = False
    await until(lambda: rig.entries.value == 17, "it is tried again")


async def test_reads_go_on_while_the_store_is_away_and_end_before_the_entry_does(rig: Rig) -> None:
    await rig.keeper.enter()
    rig.keeper.applied(11, True)
    rig.entries.answer_s = LASTS_S / 2
    await until(lambda: rig.entries.renewed, "it has renewed its entry")
    rig.entries.away = True
    started = time.monotonic()
    while rig.answers:
        assert time.monotonic() < rig.entries.ends_at, "it answers longer than its entry lasts"
        await asyncio.sleep(0.001)
    assert time.monotonic() - started > LASTS_S / 10


async def test_an_entry_that_has_ended_is_made_anew_and_reads_wait_for_what_was_cleared_meanwhile(
    rig: Rig,
) -> None:
    await rig.keeper.enter()
    rig.keeper.applied(11, True)
    rig.entries.away = True
    await until(lambda: not rig.answers, "the right to answer ends")
    rig.entries.revision = 50  # others have changed much since
    rig.entries.away = False
    await until(lambda: rig.entries.entered == 2, "it enters again")
    await asyncio.sleep(0)
    assert not rig.answers
    assert rig.entries.value == 0
    rig.keeper.applied(51, False)
    assert rig.answers
    await until(lambda: rig.entries.value == 51, "it confirms what it answers with")


async def test_a_renewed_entry_keeps_the_right_to_answer(rig: Rig) -> None:
    await rig.keeper.enter()
    rig.keeper.applied(11, True)
    ends_at = time.monotonic() + 3 * LASTS_S
    while time.monotonic() < ends_at:
        assert rig.answers
        await asyncio.sleep(0.01)
    assert rig.entries.entered == 1


async def test_a_store_without_room_for_entries_blinds_no_standby(rig: Rig) -> None:
    rig.entries.is_full = True
    await rig.keeper.enter()
    rig.keeper.applied(3, True)
    ends_at = time.monotonic() + 2 * LASTS_S
    while time.monotonic() < ends_at:
        assert rig.answers
        await asyncio.sleep(0.01)
    rig.entries.is_full = False
    await until(lambda: rig.entries.entered == 1, "it enters when there is room")
    rig.keeper.applied(11, False)
    await until(lambda: rig.entries.value == 11, "and confirms")


async def test_who_leaves_answers_nothing_and_need_not_be_waited_for(rig: Rig) -> None:
    await rig.keeper.enter()
    rig.keeper.applied(11, True)
    await rig.keeper.leave()
    assert not rig.answers
    assert rig.entries.ends_at == 0.0
