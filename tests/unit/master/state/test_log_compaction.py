"""Compaction rewrites a log in place: what the log says stays the same after each commit, and is found again after a crash at any
of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kvstore.master.metadata.store import DeleteRange, KeyUpdate, Op, Put, SpaceLevel
from kvstore.master.recovery import load
from kvstore.master.state import effects as ef
from kvstore.master.state import events as ev
from kvstore.master.state import layout, log_rewrite
from kvstore.master.state.directory_state import StateLimits
from kvstore.master.state.log_compaction import COMPACTION_RETRY_S_MIN, COMPACTIONS_MAX, LogLimits
from kvstore.master.state.log_rewrite import LogRewrite, RewriteStep
from kvstore.master.state.records import Record, RecordKind
from kvstore.master.state.replay import Replay
from kvstore_client.protocol.journal import count_entries, decode_groups
from support.state_rig import ModelSegment, StateRig, attach, directory_content

EAGER = StateLimits(log=LogLimits(compaction_factor=1.1, compaction_floor_entries=1))
NEVER = StateLimits(log=LogLimits(compaction_floor_entries=10**9, tight_compaction_floor_entries=10**9))


@pytest.fixture
def model() -> ModelSegment:
    return ModelSegment(1, random.Random(1))


@pytest.fixture
def small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a log of some hundred entries is rewritten in many steps."""
    monkeypatch.setattr(log_rewrite, "RECORD_ENTRIES_MAX", 12)
    monkeypatch.setattr(log_rewrite, "RUN_RECORDS_MAX", 6)


async def log_keys(rig: StateRig) -> list[bytes]:
    return [key async for page in rig.store.scan(b"l/") for key, _ in page]


async def journal(rig: StateRig, model: ModelSegment, session: int = 1, entries: int = 5) -> None:
    """Some random entries, durable."""
    first = model.last_seq + 1
    for _ in range(entries):
        change = model.add if model.rng.random() < 0.6 else model.remove
        change(model.rng.randrange(40))
    rig.feed(model.batch(session, first))
    await rig.commit()


async def test_a_log_full_of_dead_entries_is_rewritten_with_what_is_alive(model: ModelSegment) -> None:
    rig = await StateRig(StateLimits(log=LogLimits(2.0, 50))).start()
    await attach(rig, model, 1)
    while not (orders := rig.take(ef.CompactLog)):
        first = model.last_seq + 1
        model.add(*range(20), length=model.last_seq)
        rig.feed(model.batch(1, first))
        await rig.commit()
        assert model.last_seq < 500
    (order,) = orders
    assert rig.segment(model.segment_id).logged_entries > 2 * 20 + 50
    # The journal goes on meanwhile.
    first = model.last_seq + 1
    model.remove(0, 1)
    rig.feed(model.batch(1, first))
    await rig.commit()
    await rig.rewrite(order)
    await rig.commit()
    assert rig.segment(model.segment_id).logged_entries == 18 + 2
    assert "log_compacted" in rig.reports()
    assert len(await log_keys(rig)) == 2
    await rig.restart()
    assert directory_content(rig, model) == model.content()
    assert rig.segment(model.segment_id).logged_entries == 20
    assert rig.segment(model.segment_id).durable_seq == model.last_seq


def steps_one_by_one(rewrite: LogRewrite, records: list[tuple[bytes, bytes]]) -> Iterator[RewriteStep]:
    for record in records:
        yield from rewrite.feed([record])
    yield from rewrite.finish()


class Standby:
    """Follows what a rig commits."""

    def __init__(self, rig: StateRig) -> None:
        self.rig = rig
        self.replay: Replay
        self.known: dict[bytes, bytes] = {}

    async def start(self) -> None:
        self.replay = await load(self.rig.store, lambda corrupt: pytest.fail(str(corrupt)))
        self.known = await self._items()

    async def _items(self) -> dict[bytes, bytes]:
        prefixes = (b"l/", b"s/")
        return {k: v for p in prefixes async for page in self.rig.store.scan(p) for k, v in page}

    async def follow(self, ops: tuple[Op, ...]) -> None:
        """One commit, as a watch tells it."""
        for op in ops:
            if isinstance(op, Put):
                self.replay.follow(KeyUpdate(op.key, op.value))
            elif isinstance(op, DeleteRange):
                for key in [k for k in self.known if op.start <= k < op.end]:
                    self.replay.follow(KeyUpdate(key, None))
            else:
                self.replay.follow(KeyUpdate(op.key, None))
        self.known = await self._items()

    def content(self, model: ModelSegment) -> dict[bytes, int]:
        held = {}
        for chunk in self.replay.index.snapshot(self.replay.logs[model.segment_id].index, 1000):
            for group in decode_groups(chunk):
                for i, length in enumerate(group.lengths):
                    held[group.fingerprints[16 * i : 16 * i + 16]] = length
        return held


@pytest.mark.parametrize("seed", range(20))
async def test_after_each_commit_a_crash_and_a_standby_find_what_the_log_said(
    seed: int, small_records: None
) -> None:
    """Over several compactions, with the journal going on between their steps."""
    print(f"seed {seed}")
    model = ModelSegment(1, random.Random(seed))
    rng = random.Random(seed + 1000)
    rig = await StateRig(NEVER).start()
    await attach(rig, model, 1)
    if seed % 2:  # on top of an inventory's snapshot
        model.add(*range(30), length=7)
        for chunk in model.inventory(1, chunk_entries=8):
            rig.feed(chunk)
        await rig.commit()
    standby = Standby(rig)
    await standby.start()

    async def commit_one() -> None:
        commit = rig.pending.popleft()
        await rig.store.commit(commit.ops, rig.fence)
        rig.feed(ev.Committed(commit.change))
        await standby.follow(commit.ops)
        durable_seq = rig.segment(model.segment_id).durable_seq
        after_a_crash = await load(rig.store, lambda corrupt: pytest.fail(str(corrupt)))
        (recovered,) = after_a_crash.segments()
        assert not recovered.damaged
        assert recovered.durable_seq == durable_seq
        wanted = model.content(durable_seq)
        standby_of_now = standby.content(model)
        standby.replay, followed = after_a_crash, standby.replay
        assert standby.content(model) == wanted, "after a crash"
        standby.replay = followed
        assert standby_of_now == wanted, "at the standby"
        (followed_segment,) = followed.segments()
        logged = rig.segment(model.segment_id).logged_entries
        assert recovered.logged_entries == followed_segment.logged_entries == logged
        assert followed_segment.durable_seq == durable_seq

    async def more_journal() -> None:
        first = model.last_seq + 1
        for _ in range(rng.randrange(1, 9)):
            number, length = rng.randrange(40), rng.randrange(1, 9)
            model.add(number, length=length) if rng.random() < 0.6 else model.remove(number)
        rig.feed(model.batch(1, first))

    for _ in range(4):
        for _ in range(rng.randrange(5, 25)):
            await more_journal()
            await commit_one()
        segment = rig.segment(model.segment_id)
        before = segment.logged_entries
        order = rig.state.logs.compaction._begin(segment)
        records = [record async for page in rig.store.scan(b"l/") for record in page]
        rewrite = LogRewrite(order, rig.state.index)
        steps = 0
        for step in steps_one_by_one(rewrite, records):
            steps += 1
            rig.feed(
                ev.LogRewritten(
                    model.segment_id, order.run, step.ops, step.entries_before, step.entries_after
                )
            )
            if rng.random() < 0.5:
                await more_journal()
            while rig.pending and rng.random() < 0.6:
                await commit_one()
        rig.feed(ev.CompactionEnded(model.segment_id, order.run, rewrite.damaged))
        while rig.pending:
            await commit_one()
        assert steps > 1 and not rewrite.damaged
        assert segment.compaction is None
        journalled_since = model.last_seq - order.through_seq
        # Each object once, as it was alive at some moment meanwhile.
        assert segment.logged_entries <= 40 + journalled_since, (before, segment.logged_entries)


async def test_an_inventory_makes_a_running_compaction_void(model: ModelSegment) -> None:
    rig = await StateRig(EAGER).start()
    await attach(rig, model, 1)
    model.add(1, 1, 1, 1)
    rig.feed(model.batch(1, 1))
    await rig.commit()
    (order,) = rig.take(ef.CompactLog)
    for chunk in model.inventory(1):
        rig.feed(chunk)
    before = len(rig.pending)
    await rig.rewrite(order)
    assert len(rig.pending) == before, "a step would bring back what the inventory has replaced"
    assert not rig.state.logs.compaction.is_wanted(order.segment_id, order.run)
    await rig.commit()
    await rig.restart()
    assert directory_content(rig, model) == model.content()


async def test_a_step_of_a_compaction_that_is_void_counts_for_no_later_one(model: ModelSegment) -> None:
    rig = await StateRig(EAGER).start()
    await attach(rig, model, 1)
    model.add(1, 1, 1, 1)
    rig.feed(model.batch(1, 1))
    await rig.commit()
    (void,) = rig.take(ef.CompactLog)
    for chunk in model.inventory(1):
        rig.feed(chunk)
    model.add(1, 1, 1, 1)
    rig.feed(model.batch(1, 5))
    await rig.commit()
    (later,) = rig.take(ef.CompactLog)
    for order, commits in ((void, 0), (later, 1)):
        rig.feed(ev.LogRewritten(order.segment_id, order.run, (), 1, 1))
        assert len(rig.pending) == commits


async def test_no_compaction_begins_while_a_snapshot_is_on_its_way(model: ModelSegment) -> None:
    rig = await StateRig(EAGER).start()
    await attach(rig, model, 1)
    model.add(1)
    rig.feed(model.batch(1, 1))
    await rig.commit()
    for chunk in model.inventory(1):
        rig.feed(chunk)
    rig.segment(model.segment_id).logged_entries = 1000
    rig.feed(ev.SpaceMeasured(SpaceLevel.NORMAL, ""))
    assert rig.take(ef.CompactLog) == [], "it would read the log that the snapshot replaces"
    await rig.commit()


@pytest.mark.parametrize("loss", ["damaged", "missing", "missing at the end"])
async def test_a_compaction_that_finds_a_record_lost_asks_for_the_inventory_and_changes_nothing(
    loss: str, model: ModelSegment
) -> None:
    rig = await StateRig(NEVER).start()
    await attach(rig, model, 1)
    for _ in range(6):
        await journal(rig, model)
    keys = await log_keys(rig)
    key = keys[-1 if loss == "missing at the end" else 2]
    if loss == "damaged":
        await rig.write_raw(key, b"rubbish")
    else:
        await rig.store.commit((DeleteRange(key, key + b"\x00"),), rig.fence)
    order = rig.state.logs.compaction._begin(rig.segment(model.segment_id))
    await rig.rewrite(order)
    assert rig.take(ef.RequestInventory) == [ef.RequestInventory(1)]
    assert not rig.pending
    assert rig.segment(model.segment_id).damaged
    assert directory_content(rig, model) == model.content(), "what is known is still served"


async def with_a_snapshot(model: ModelSegment) -> StateRig:
    """Of 30 objects, in three chunks."""
    rig = await StateRig(NEVER).start()
    await attach(rig, model, 1)
    model.add(*range(30))
    for chunk in model.inventory(1, chunk_entries=10):
        rig.feed(chunk)
    await rig.commit()
    return rig


@pytest.mark.parametrize("loss", ["damaged", "missing"])
async def test_a_compaction_that_finds_a_chunk_lost_asks_for_the_inventory(
    loss: str, model: ModelSegment
) -> None:
    rig = await with_a_snapshot(model)
    key = layout.snapshot_key(model.segment_id, 1, 1)
    assert key in await log_keys(rig)
    if loss == "damaged":
        await rig.write_raw(key, b"rubbish")
    else:
        await rig.store.commit((DeleteRange(key, key + b"\x00"),), rig.fence)
    await rig.rewrite(rig.state.logs.compaction._begin(rig.segment(model.segment_id)))
    assert rig.take(ef.RequestInventory) == [ef.RequestInventory(1)]
    assert rig.segment(model.segment_id).damaged
    await rig.commit()  # of what came before
    assert directory_content(rig, model) == model.content(), "what is known is still served"


async def test_chunks_of_an_inventory_that_was_never_finished_are_left_alone(model: ModelSegment) -> None:
    rig = await with_a_snapshot(model)
    chunk = await rig.store.get(layout.snapshot_key(model.segment_id, 1, 0))
    assert chunk is not None
    unfinished = layout.snapshot_key(model.segment_id, 9, 0)
    await rig.write_raw(unfinished, chunk)
    first = model.last_seq + 1
    model.remove(*range(5))
    rig.feed(model.batch(1, first))
    await rig.commit()
    await rig.rewrite(rig.state.logs.compaction._begin(rig.segment(model.segment_id)))
    assert rig.pending and not rig.segment(model.segment_id).damaged
    await rig.commit()
    assert await rig.store.get(unfinished) == chunk
    await rig.restart()
    assert directory_content(rig, model) == model.content()


async def test_a_rewritten_record_holds_no_more_than_any_other(
    small_records: None, model: ModelSegment
) -> None:
    rig = await StateRig(NEVER).start()
    await attach(rig, model, 1)
    for number in range(20):
        first = model.last_seq + 1
        model.add(*range(5 * number, 5 * number + 5))
        rig.feed(model.batch(1, first))
        await rig.commit()
    model.remove(*range(0, 100, 7))
    rig.feed(model.batch(1, 101))
    await rig.commit()
    await rig.rewrite(rig.state.logs.compaction._begin(rig.segment(model.segment_id)))
    written = [op.value for commit in rig.pending for op in commit.ops if isinstance(op, Put)]
    counts = [count_entries(Record.decode(value, RecordKind.SNAPSHOT).body) for value in written]
    assert counts and max(counts) <= 12


async def test_a_few_logs_are_compacted_at_a_time_those_with_the_most_dead_entries_first() -> None:
    rig = await StateRig(NEVER).start()
    models = [ModelSegment(number, random.Random(number)) for number in range(6)]
    for number, model in enumerate(models):
        await attach(rig, model, number + 1)
        for _ in range(number + 2):
            first = model.last_seq + 1
            model.add(1, 2, 3, 4)
            rig.feed(model.batch(number + 1, first))
        await rig.commit()
    assert rig.take(ef.CompactLog) == []
    rig.state.logs.compaction._limits = LogLimits(tight_compaction_floor_entries=1)
    rig.feed(ev.SpaceMeasured(SpaceLevel.TIGHT, "as the test says"))
    orders = rig.take(ef.CompactLog)
    first = models[0].last_seq + 1
    models[0].add(1)
    rig.feed(models[0].batch(1, first))
    await rig.commit()
    assert rig.take(ef.CompactLog) == [], "nor does one that grows begin"
    done = []
    while orders:
        assert len(orders) <= COMPACTIONS_MAX
        order = orders.pop(0)
        rig.feed(ev.SpaceMeasured(SpaceLevel.TIGHT, "as the test says"))
        assert rig.take(ef.CompactLog) == [], "two are being done"
        await rig.rewrite(order)
        await rig.commit()
        done.append(order.segment_id)
        orders += rig.take(ef.CompactLog)
    assert done == [model.segment_id for model in reversed(models)]


async def test_a_compaction_waits_for_room_and_its_writes_are_counted(model: ModelSegment) -> None:
    rig = await StateRig(NEVER).start()
    await attach(rig, model, 1)
    for _ in range(20):
        await journal(rig, model)
    rig.state.logs.compaction._limits = LogLimits(tight_compaction_floor_entries=1)
    rig.feed(ev.SpaceMeasured(SpaceLevel.TIGHT, "", 1 << 20, 0))
    assert rig.take(ef.CompactLog) == []
    rig.feed(ev.SpaceMeasured(SpaceLevel.TIGHT, "", 1 << 20, 100))
    (order,) = rig.take(ef.CompactLog)
    assert rig.state.logs.space.takes_upkeep
    await rig.rewrite(order)
    assert not rig.state.logs.space.takes_upkeep


@pytest.mark.parametrize("how", ["told", "commit"])
async def test_a_compaction_that_failed_is_tried_again_later_and_ever_later(
    how: str, model: ModelSegment
) -> None:
    rig = await StateRig(EAGER).start()
    await attach(rig, model, 1)

    async def order() -> list[ef.CompactLog]:
        first = model.last_seq + 1
        model.add(1, 1, 1, 1)
        rig.feed(model.batch(1, first))
        await rig.commit()
        return rig.take(ef.CompactLog)

    orders = await order()
    for delay_s in (COMPACTION_RETRY_S_MIN, 2 * COMPACTION_RETRY_S_MIN, 4 * COMPACTION_RETRY_S_MIN):
        (failing,) = orders
        if how == "told":
            rig.feed(ev.CompactionFailed(failing.segment_id, failing.run))
        else:
            await rig.rewrite(failing)
            await rig.fail_commits(applied=True)
        assert rig.take(ef.CloseSession) == [], "its segment has nothing to do with it"
        rig.now += delay_s - 1
        assert await order() == []
        rig.now += 1
        orders = await order()
    (last,) = orders
    await rig.rewrite(last)
    await rig.commit()
    assert rig.segment(model.segment_id).compaction_failures == 0
    await rig.restart()
    assert directory_content(rig, model) == model.content()
    assert not rig.segment(model.segment_id).damaged


async def test_entries_of_a_segment_that_left_are_not_rewritten(model: ModelSegment) -> None:
    rig = await StateRig(EAGER).start()
    await attach(rig, model, 1)
    model.add(1, 1, 1, 1)
    rig.feed(model.batch(1, 1))
    await rig.commit()
    (order,) = rig.take(ef.CompactLog)
    rig.feed(ev.SegmentLeaving(1, "done"))
    await rig.rewrite(order)
    await rig.commit()
    assert await log_keys(rig) == []
    rig.feed(ev.SpaceMeasured(SpaceLevel.TIGHT, ""))
    assert rig.take(ef.CompactLog) == []
