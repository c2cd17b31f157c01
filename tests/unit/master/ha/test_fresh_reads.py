"""What a standby does before it says that something is missing."""

from __future__ import annotations

import asyncio

import pytest

from kvstore.common.errors import StoreError
from kvstore.master.ha import fresh_reads as module
from kvstore.master.ha.fresh_reads import FreshReads
from kvstore.master.metrics import MasterMetrics
from support.master_peers import until


class Store:
    """Commits are counted up; questions are answered when the test says so."""

    def __init__(self) -> None:
        self.committed = 0
        self.applied = 0
        self.questions: list[asyncio.Future[int]] = []
        self._moved = asyncio.Event()

    def newest_commit(self) -> asyncio.Future[int]:
        self.questions.append(asyncio.get_running_loop().create_future())
        return self.questions[-1]

    def answer(self) -> None:
        """What was committed by now."""
        self.questions[-1].set_result(self.committed)

    def apply(self, revision: int) -> None:
        self.applied = revision
        self._moved.set()
        self._moved = asyncio.Event()

    async def reached(self, revision: int) -> None:
        while self.applied < revision:
            await self._moved.wait()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(module, "CAUGHT_UP_WITHIN_S", 20.0)  # a loaded machine fails no test
    return Store()


async def ask(fresh: FreshReads, store: Store, questions: int) -> asyncio.Task[bool]:
    """A read that waits, with so many questions on their way or answered by now."""
    read = asyncio.create_task(fresh.caught_up())
    await until(lambda: len(store.questions) == questions, "the store is asked")
    return read


async def test_a_read_waits_until_all_is_applied_that_was_committed_before_it(store: Store) -> None:
    fresh = FreshReads(store.newest_commit, store.reached, MasterMetrics())
    store.committed = 7
    read = await ask(fresh, store, 1)
    store.answer()
    store.apply(6)
    for _ in range(50):  # turns of the loop, of which it would need a few
        await asyncio.sleep(0)
    assert not read.done()
    store.apply(7)
    assert await asyncio.wait_for(read, 10)


async def test_reads_that_come_while_a_question_is_on_its_way_share_the_next_one(store: Store) -> None:
    fresh = FreshReads(store.newest_commit, store.reached, MasterMetrics())
    first = await ask(fresh, store, 1)
    # Committed after the store was asked, before these came: the answer to the first question need not have it.
    store.committed = 1
    others = [asyncio.create_task(fresh.caught_up()) for _ in range(50)]
    store.questions[0].set_result(0)
    assert await asyncio.wait_for(first, 10)
    await until(lambda: len(store.questions) == 2, "the store is asked for the others")
    assert not any(other.done() for other in others)
    store.answer()
    store.apply(1)
    assert await asyncio.wait_for(asyncio.gather(*others), 10) == [True] * 50
    assert len(store.questions) == 2


async def test_a_store_that_does_not_answer_is_waited_for_once_and_then_left_alone_for_a_while(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CAUGHT_UP_WITHIN_S", 0.01)
    metrics = MasterMetrics()
    fresh = FreshReads(store.newest_commit, store.reached, metrics)
    assert await asyncio.wait_for(fresh.caught_up(), 10) is False
    assert not fresh.worth_asking
    assert metrics.registry.get_sample_value("kvstore_master_unconfirmed_misses_total") == 1
    monkeypatch.setattr(module, "SILENT_S", 0.0)
    later = FreshReads(store.newest_commit, store.reached, metrics)
    assert await asyncio.wait_for(later.caught_up(), 10) is False
    await until(lambda: later.worth_asking, "it is asked again")


async def test_a_store_that_fails_costs_no_read(store: Store) -> None:
    async def fails() -> int:
        raise StoreError("no leader")

    fresh = FreshReads(fails, store.reached, MasterMetrics())
    reads = [asyncio.create_task(fresh.caught_up()) for _ in range(3)]
    assert await asyncio.wait_for(asyncio.gather(*reads), 10) == [False] * 3


async def test_whoever_waits_is_let_go_when_the_role_ends(store: Store) -> None:
    fresh = FreshReads(store.newest_commit, store.reached, MasterMetrics())
    first = await ask(fresh, store, 1)
    second = asyncio.create_task(fresh.caught_up())
    await asyncio.sleep(0)
    fresh.close()
    assert await asyncio.wait_for(asyncio.gather(first, second), 10) == [False, False]
