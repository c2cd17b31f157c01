"""Core tasks: the end of one is told or mended, and an owner that has stopped has none any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kvstore.common import core_tasks as module
from kvstore.common.core_tasks import CoreTasks, core_task_restarts, running_core_tasks
from kvstore.common.errors import CoreTaskEnded, KvstoreError, NewerFormatError
from support.master_peers import until


class Rig:
    def __init__(self) -> None:
        self.told: list[KvstoreError] = []
        self.tasks = CoreTasks(self.told.append)
        self.began_at: list[float] = []

    def task(self, name: str) -> asyncio.Task[None]:
        (found,) = [task for task in running_core_tasks() if task.get_name() == name]
        return found

    async def fails_at_once(self) -> None:
        self.began_at.append(asyncio.get_running_loop().time())
        raise ValueError("a bug")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.tasks.stop()


async def for_ever() -> None:
    await asyncio.Event().wait()


async def returns() -> None:
    pass


async def raises(error: Exception) -> None:
    raise error


async def test_a_task_that_returns_or_raises_is_told_by_its_name_and_its_reason(rig: Rig) -> None:
    rig.tasks.start(returns(), "idle")
    rig.tasks.start(raises(ValueError("a bug")), "broken")
    rig.tasks.start(for_ever(), "well")
    await until(lambda: len(rig.told) == 2, "both are told")
    assert all(isinstance(error, CoreTaskEnded) for error in rig.told)
    assert [str(error) for error in rig.told] == [
        "core task idle ended: it returned",
        "core task broken ended: ValueError('a bug')",
    ]
    assert not rig.task("well").done()


async def test_a_task_that_somebody_cancels_is_told(rig: Rig) -> None:
    rig.tasks.start(for_ever(), "well")
    await asyncio.sleep(0)
    rig.task("well").cancel()
    await until(lambda: rig.told, "it is told")
    assert "was cancelled" in str(rig.told[0])


async def test_a_job_may_return_and_may_not_raise(rig: Rig) -> None:
    rig.tasks.start_job(returns(), "job")
    rig.tasks.start_job(raises(ValueError("a bug")), "broken")
    await until(lambda: rig.told, "the one that raised is told")
    assert [str(error) for error in rig.told] == ["core task broken ended: ValueError('a bug')"]


async def test_a_later_format_is_told_as_what_it_is(rig: Rig) -> None:
    later = NewerFormatError("a record", 2, 1)
    rig.tasks.start(raises(later), "reader")
    await until(lambda: rig.told, "it is told")
    assert rig.told == [later]


async def test_who_stops_waits_for_the_end_of_all_and_nobody_is_told(rig: Rig) -> None:
    ended = []

    async def ends_in_turns() -> None:
        try:
            await for_ever()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            ended.append(True)

    rig.tasks.start(ends_in_turns(), "slow")
    rig.tasks.start_job(ends_in_turns(), "slow job")
    rig.tasks.keep(ends_in_turns, "slow and kept")
    await asyncio.sleep(0)
    await rig.tasks.stop()
    assert (ended, rig.told) == ([True] * 3, [])
    await rig.tasks.stop()


async def test_an_owner_that_has_stopped_begins_nothing(rig: Rig) -> None:
    await rig.tasks.stop()
    late = rig.fails_at_once()
    rig.tasks.start(late, "late")
    rig.tasks.keep(rig.fails_at_once, "late and kept")
    for _ in range(3):
        await asyncio.sleep(0)
    assert (rig.began_at, rig.told) == ([], [])
    with pytest.raises(RuntimeError):  # it was closed: nobody is warned that it was never awaited
        late.send(None)


async def test_a_task_that_is_kept_is_begun_again_ever_later_and_counted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTART_DELAY_S_MIN", 0.01)
    before = core_task_restarts().get("kept", 0)
    rig.tasks.keep(rig.fails_at_once, "kept")
    await until(lambda: len(rig.began_at) == 7, "it is begun again")
    gaps_s = [later - earlier for earlier, later in zip(rig.began_at, rig.began_at[1:], strict=False)]
    for number, gap_s in enumerate(gaps_s):
        assert gap_s >= 0.005 * 2**number - 0.001, gaps_s
    assert core_task_restarts()["kept"] - before in (6, 7)
    assert rig.told == []


async def test_a_task_that_was_well_meanwhile_is_begun_again_soon(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTART_DELAY_S_MIN", 0.01)
    monkeypatch.setattr(module, "WELL_AFTER_S", 0.0)
    rig.tasks.keep(rig.fails_at_once, "kept")
    # Delays that doubled would make this 50 seconds at least.
    await until(lambda: len(rig.began_at) >= 20, "it is begun again", timeout_s=30)


async def test_a_task_that_is_kept_is_not_begun_again_once_its_owner_stops(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTART_DELAY_S_MIN", 0.01)
    monkeypatch.setattr(module, "RESTART_DELAY_S_MAX", 0.01)
    before = core_task_restarts().get("stopped", 0)

    async def kept() -> None:
        rig.began_at.append(0.0)
        await for_ever()

    rig.tasks.keep(kept, "stopped")
    await until(lambda: rig.began_at, "it runs")
    await rig.tasks.stop()
    await asyncio.sleep(0.05)  # in which it would have been begun again
    assert len(rig.began_at) == 1
    assert core_task_restarts().get("stopped", 0) == before
