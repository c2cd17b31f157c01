"""Group commit: order, grouping, failure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kvstore.common.core_tasks import CoreTasks
from kvstore.common.errors import FencedError, KvstoreError, StoreError
from kvstore.master import committer as committer_module
from kvstore.master.committer import Committer
from kvstore.master.metadata.memory import MemoryStore
from kvstore.master.metadata.store import (
    COMMIT_BYTES_MAX,
    COMMIT_OPS_MAX,
    KEY_BYTES_MAX,
    DeleteRange,
    Fence,
    Op,
    Put,
)
from kvstore.master.state.changes import Change, NamespaceStored


class GatedStore(MemoryStore):
    """A real store whose commits wait at a gate, and fail when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.commits: list[list[Op]] = []
        self.error: StoreError | None = None

    async def commit(self, ops: Sequence[Op], fence: Fence) -> None:
        self.commits.append(list(ops))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        await super().commit(ops, fence)


class Rig:
    def __init__(self) -> None:
        self.store = GatedStore()
        self.done: list[int] = []
        self.failed: list[int] = []
        self.fenced: list[FencedError] = []
        self.stalled: list[tuple[str, float]] = []
        self.ended: list[KvstoreError] = []

    async def start(self) -> Committer:
        await self.store.open()
        committer = Committer(
            self.store,
            await self.store.acquire(),
            on_done=lambda change: self.done.append(_number(change)),
            on_failed=lambda change, error: self.failed.append(_number(change)),
            on_commit=lambda seconds, count: None,
            on_stalled=lambda error, stalled_s: self.stalled.append((error, stalled_s)),
            on_fenced=self.fenced.append,
        )
        self.tasks = CoreTasks(self.ended.append)
        committer.start(self.tasks)
        return committer


def _number(change: Change) -> int:
    assert isinstance(change, NamespaceStored)
    return change.epoch


def submit(committer: Committer, number: int, *ops: Op) -> None:
    committer.submit(ops or (Put(b"k%d" % number, b"v"),), NamespaceStored(b"", number))


async def until(condition: object, timeout_s: float = 5.0) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():  # type: ignore[operator]
        assert asyncio.get_running_loop().time() < deadline, "condition did not come true in time"
        await asyncio.sleep(0.002)


async def test_what_queues_behind_a_commit_goes_into_the_next_one_in_order() -> None:
    rig = Rig()
    committer = await rig.start()
    rig.store.gate.clear()
    submit(committer, 0)
    await until(lambda: len(rig.store.commits) == 1)
    for number in range(1, 300):
        submit(committer, number)
    rig.store.gate.set()
    await until(lambda: len(rig.done) == 300)
    assert rig.done == list(range(300))
    assert [len(commit) for commit in rig.store.commits] == [1, 127, 127, 45]
    assert committer.backlog_bytes == 0
    await committer.stop()


async def test_operations_that_touch_the_same_keys_are_never_in_one_commit() -> None:
    rig = Rig()
    committer = await rig.start()
    submit(committer, 0, Put(b"k1", b"old"), Put(b"other", b""))
    submit(committer, 1, DeleteRange(b"k", b"l"))
    submit(committer, 2, Put(b"k1", b"new"))
    await until(lambda: len(rig.done) == 3)
    assert len(rig.store.commits) == 3
    assert await rig.store.get(b"k1") == b"new"
    await committer.stop()


async def test_a_commit_that_fails_is_made_again_with_nothing_before_it_and_nothing_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committer_module, "RETRY_DELAY_S_MAX", 0.05)
    rig = Rig()
    committer = await rig.start()
    rig.store.gate.clear()
    submit(committer, 0)
    await until(lambda: len(rig.store.commits) == 1)
    for number in range(1, 200):
        submit(committer, number)
    other = asyncio.create_task(committer.commit((Put(b"direct", b""),)))
    await asyncio.sleep(0)
    rig.store.error = StoreError("disk full")
    rig.store.gate.set()
    await until(lambda: len(rig.stalled) == 4)
    assert len(rig.store.commits) >= 4
    assert all(commit == [Put(b"k0", b"v")] for commit in rig.store.commits)
    assert (rig.done, rig.failed) == ([], [])
    assert [await rig.store.get(b"k%d" % number) for number in range(200)] == [None] * 200
    (first, _, _, last) = rig.stalled
    assert first == ("disk full", 0.0) and last[1] > 0
    rig.store.error = None
    await asyncio.wait_for(other, 5)
    assert rig.done == list(range(200))
    assert rig.failed == []
    assert committer.backlog_bytes == 0
    await committer.stop()


async def test_a_store_that_fails_does_not_keep_a_master_from_stopping() -> None:
    rig = Rig()
    committer = await rig.start()
    rig.store.error = StoreError("disk full")
    submit(committer, 0)
    submit(committer, 1)
    await until(lambda: bool(rig.stalled))
    submit(committer, 2)
    await asyncio.wait_for(committer.stop(), 5)
    assert rig.failed == [0, 1, 2]


async def test_a_committer_that_dies_is_not_overlooked(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    committer = await rig.start()

    async def broken(ops: Sequence[Op], fence: Fence) -> None:
        raise TypeError("a bug in the store")

    rig.store.commit = broken  # type: ignore[method-assign]
    submit(committer, 0)
    await until(lambda: bool(rig.ended))
    assert "committer" in str(rig.ended[0]) and "a bug in the store" in str(rig.ended[0])
    assert [record.message for record in caplog.records if record.levelname == "CRITICAL"] == [
        "core_task_ended"
    ]
    await asyncio.wait_for(committer.stop(), 5)


async def test_being_fenced_is_reported() -> None:
    rig = Rig()
    committer = await rig.start()
    await rig.store.acquire()
    submit(committer, 1)
    await until(lambda: bool(rig.fenced))
    assert rig.failed == [1]
    await committer.stop()


async def test_what_no_store_would_take_fails_with_what_is_behind_it_and_then_work_goes_on() -> None:
    rig = Rig()
    committer = await rig.start()
    submit(committer, 0)
    submit(committer, 1, Put(b"k", bytes(2 << 20)))
    submit(committer, 2)  # it may be the next record of the same log, and would hide the hole
    await until(lambda: rig.failed == [1, 2])
    assert rig.done == [0]
    assert await rig.store.get(b"k2") is None
    submit(committer, 3)
    await until(lambda: rig.done == [0, 3])
    await committer.stop()


async def test_a_full_backlog_makes_readers_wait_until_there_is_room() -> None:
    rig = Rig()
    committer = await rig.start()
    rig.store.gate.clear()
    for number in range(50):
        submit(committer, number, Put(b"k%d" % number, bytes(1_000_000)))
    assert committer.backlog_bytes > committer_module.BACKLOG_BYTES_MAX
    waiting = asyncio.create_task(committer.wait_for_room())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    rig.store.gate.set()
    await asyncio.wait_for(waiting, 5)
    assert committer.backlog_bytes <= committer_module.BACKLOG_BYTES_MAX
    await committer.stop()


async def test_stopping_commits_what_was_accepted() -> None:
    rig = Rig()
    committer = await rig.start()
    for number in range(20):
        submit(committer, number)
    await committer.stop()
    await committer.stop()
    assert rig.done == list(range(20))


@pytest.mark.parametrize("failing", [0, 1, 2])
async def test_after_one_commit_that_fails_once_everything_behind_it_is_stored_in_order(failing: int) -> None:
    rig = Rig()
    committer = await rig.start()
    rig.store.gate.clear()
    submit(committer, 0)
    await until(lambda: len(rig.store.commits) == 1)
    for number in range(1, 300):
        submit(committer, number, Put(b"k", b"%d" % number))  # each over the one before: none shares a commit
    stored: list[bytes] = []
    commit = rig.store.commit

    async def watched(ops: Sequence[Op], fence: Fence) -> None:
        rig.store.error = StoreError("once") if len(rig.store.commits) == failing else None
        await commit(ops, fence)
        stored.extend(op.value for op in ops if isinstance(op, Put) and op.key == b"k")

    rig.store.commit = watched  # type: ignore[method-assign]
    rig.store.commits.clear()
    rig.store.gate.set()
    await until(lambda: len(rig.done) == 300)
    assert rig.done == list(range(300))
    assert stored == [b"%d" % number for number in range(1, 300)]
    assert len(rig.stalled) == 1 and rig.failed == []
    await committer.stop()


class TogetherStore(GatedStore):
    """One that makes several commits durable in one go, as the embedded one does."""

    COMMITS_TOGETHER_MAX = 256

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[list[list[Op]]] = []

    async def commit_together(self, commits: Sequence[Sequence[Op]], fence: Fence) -> None:
        self.groups.append([list(ops) for ops in commits])
        await super().commit_together(commits, fence)


async def test_the_whole_queue_is_one_group_however_many_commits_it_makes_up() -> None:
    rig = Rig()
    rig.store = store = TogetherStore()
    committer = await rig.start()
    store.gate.clear()
    submit(committer, 0)
    await until(lambda: len(store.groups) == 1)
    for number in range(1, 300):
        submit(committer, number)
    submit(committer, 300, Put(b"k7", b"again"))  # of a key that is in the group already
    store.gate.set()
    await until(lambda: len(rig.done) == 301)
    assert rig.done == list(range(301))
    assert [[len(commit) for commit in group] for group in store.groups] == [[1], [127, 127, 46]]
    assert await store.get(b"k7") == b"again"
    await committer.stop()


async def test_a_group_is_bounded_in_bytes_and_in_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TogetherStore, "COMMITS_TOGETHER_MAX", 5)
    rig = Rig()
    rig.store = store = TogetherStore()
    committer = await rig.start()
    store.gate.clear()
    submit(committer, 0)
    await until(lambda: len(store.groups) == 1)
    for number in range(1, 6):
        submit(committer, number, Put(b"k%d" % number, bytes(900_000)))
    for number in range(6, 12):
        submit(committer, number, Put(b"same", b"%d" % number))
    store.gate.set()
    await until(lambda: len(rig.done) == 12)
    assert rig.done == list(range(12))
    assert [len(group) for group in store.groups] == [1, 3, 5, 2]
    await committer.stop()


@pytest.mark.parametrize(
    "ops",
    [
        [Put(b"", b"v")],
        [Put(b"k" * (KEY_BYTES_MAX + 1), b"v")],
        [Put(b"\x00term", b"v")],
        [Put(b"k", b"1"), Put(b"k", b"2")],
        [Put(b"k%d" % i, b"") for i in range(COMMIT_OPS_MAX + 1)],
        [Put(b"k", bytes(COMMIT_BYTES_MAX))],
    ],
    ids=["empty key", "long key", "key of the store", "key twice", "operations", "bytes"],
)
async def test_a_write_over_any_bound_fails_alone_with_what_is_behind_it_and_the_committer_lives(
    ops: list[Op],
) -> None:
    rig = Rig()
    rig.store = TogetherStore()
    committer = await rig.start()
    submit(committer, 0)
    submit(committer, 1, *ops)
    submit(committer, 2)
    await until(lambda: rig.failed == [1, 2])
    assert rig.done == [0]
    with pytest.raises(StoreError):  # as a compaction writes
        await asyncio.wait_for(committer.commit(ops), 5)
    await asyncio.wait_for(committer.commit([Put(b"k", b"v")]), 5)
    assert rig.ended == []
    assert committer.backlog_bytes == 0
    await committer.stop()


async def test_a_commit_that_hangs_keeps_nobody_from_stopping_and_its_outcome_is_told_as_unknown() -> None:
    rig = Rig()
    committer = await rig.start()
    rig.store.gate.clear()
    submit(committer, 0)
    await until(lambda: len(rig.store.commits) == 1)
    submit(committer, 1)
    await asyncio.wait_for(committer.stop(), committer_module.STOP_TIMEOUT_S + 2)
    await asyncio.wait_for(rig.tasks.stop(), 2)
    assert (rig.done, rig.failed) == ([], [0, 1])


async def test_what_a_large_group_has_made_durable_is_told_in_turns_with_everything_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class SlowClock:
        """Telling of a change takes 3 ms, as applying a journal to the index may."""

        now = 0.0

        def perf_counter(self) -> float:
            return self.now

    clock = SlowClock()
    monkeypatch.setattr(committer_module, "time", clock)
    rig = Rig()
    committer = await rig.start()
    turns: list[int] = []

    def tell(change: Change) -> None:
        clock.now += 0.003
        rig.done.append(_number(change))

    async def others() -> None:
        while len(rig.done) < 40:
            turns.append(len(rig.done))
            await asyncio.sleep(0)

    monkeypatch.setattr(committer, "_on_done", tell)
    for number in range(40):
        submit(committer, number)
    await others()
    assert rig.done == list(range(40)), "in order all the same"
    told_at_once = max(later - earlier for earlier, later in zip(turns, [*turns[1:], 40], strict=True))
    assert 0 < told_at_once <= 2
    assert [len(commit) for commit in rig.store.commits] == [40]
    await committer.stop()
