"""Journal and inventory in the master's state machine, on a store whose commits the test
controls."""

from __future__ import annotations

import random

import pytest

from kvstore.master.state import effects as ef
from kvstore.master.state import events as ev
from kvstore.master.state import layout, segment_logs
from kvstore.master.state.directory_state import StateLimits
from kvstore.master.state.layout import SEQ_MAX
from kvstore.master.state.log_compaction import LogLimits
from kvstore.master.state.segment_logs import RECORD_ENTRIES_MAX
from kvstore_client.protocol import OBJECT_BYTES_MAX, SegmentState, Status
from support.state_rig import ModelSegment, StateRig, attach, directory_content, fingerprint


@pytest.fixture
def model() -> ModelSegment:
    return ModelSegment(1, random.Random(1))


async def test_entries_are_found_only_once_their_record_is_durable(model: ModelSegment) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    model.add(1, 2, 3)
    rig.feed(model.batch(1, 1))
    assert directory_content(rig, model) == {}
    assert rig.take(ef.AckJournal) == []
    await rig.commit()
    assert directory_content(rig, model) == model.content()
    assert rig.take(ef.AckJournal) == [ef.AckJournal(1, 3)]


async def test_acked_entries_survive_a_restart_and_unacked_ones_are_asked_for_again(
    model: ModelSegment,
) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    model.add(*range(10))
    rig.feed(model.batch(1, 1, 6))
    await rig.commit()
    rig.feed(model.batch(1, 7))
    await rig.restart()
    assert directory_content(rig, model) == model.content(6)
    accepted = await attach(rig, model, 2)
    assert (accepted.durable_seq, accepted.need_inventory) == (6, False)


async def test_entries_sent_twice_are_applied_once(model: ModelSegment) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    model.add(1, 2)
    model.remove(1)
    model.add(3)
    rig.feed(model.batch(1, 1, 2))
    rig.feed(model.batch(1, 1, 2))
    rig.feed(model.batch(1, 2, 4))  # overlaps by one
    await rig.commit()
    assert rig.segment(model.segment_id).durable_seq == 4
    assert directory_content(rig, model) == model.content()
    rig.take(ef.AckJournal)
    rig.feed(model.batch(1, 1, 4))
    assert rig.take(ef.AckJournal) == [ef.AckJournal(1, 4)]
    assert not rig.pending


async def test_a_gap_asks_for_the_inventory_and_ignores_the_journal_until_it_has_come(
    model: ModelSegment,
) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    model.add(1, 2, 3, 4)
    rig.feed(model.batch(1, 1, 2))
    rig.feed(model.batch(1, 4))
    assert rig.take(ef.RequestInventory) == [ef.RequestInventory(1)]
    assert "journal_gap" in rig.reports()
    await rig.commit()
    assert directory_content(rig, model) == model.content(2)
    model.remove(1)
    rig.feed(model.batch(1, 5))
    assert not rig.pending
    assert rig.take(ef.RequestInventory) == [], "it is asked for once"
    for chunk in model.inventory(1):
        rig.feed(chunk)
    model.add(9)
    rig.feed(model.batch(1, 6))
    await rig.commit()
    assert directory_content(rig, model) == model.content()
    await rig.restart()
    assert directory_content(rig, model) == model.content()
    assert rig.segment(model.segment_id).durable_seq == 6


async def test_an_inventory_in_chunks_replaces_what_was_there(model: ModelSegment) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    model.add(*range(100))
    rig.feed(model.batch(1, 1))
    await rig.commit()
    model.remove(*range(50))
    model.add(*range(200, 230))
    model.oldest_kept_seq = model.last_seq + 1
    accepted = await attach(rig, model, 2)
    assert accepted.need_inventory
    for chunk in model.inventory(2, chunk_entries=7):
        rig.feed(chunk)
    await rig.commit()
    assert directory_content(rig, model) == model.content()
    assert rig.take(ef.AckJournal)[-1] == ef.AckJournal(2, model.last_seq)
    for chunk in model.inventory(2, chunk_entries=20):
        rig.feed(chunk)
    await rig.commit()
    pages = [page async for page in rig.store.scan(layout.log_prefix(model.segment_id))]
    kept = [layout.parse_log_key(key) for page in pages for key, _ in page]
    assert [(at.generation, at.chunk, at.first_seq) for at in kept] == [(2, n, None) for n in range(4)]
    await rig.restart()
    assert directory_content(rig, model) == model.content()
    assert not rig.corrupt


async def test_an_empty_inventory_empties_the_segment(model: ModelSegment) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    model.add(1, 2)
    rig.feed(model.batch(1, 1))
    await rig.commit()
    model.remove(1, 2)
    for chunk in model.inventory(1):
        rig.feed(chunk)
    await rig.commit()
    assert directory_content(rig, model) == {}
    await rig.restart()
    assert directory_content(rig, model) == {}
    assert rig.segment(model.segment_id).durable_seq == 4


async def test_an_inventory_that_breaks_off_leaves_a_whole_log_behind(model: ModelSegment) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    model.add(*range(40))
    rig.feed(model.batch(1, 1))
    await rig.commit()
    for chunk in model.inventory(1, chunk_entries=10)[:2]:
        rig.feed(chunk)
    await rig.commit()
    rig.feed(ev.StreamLost(1))
    await rig.restart()
    assert directory_content(rig, model) == model.content()
    assert not rig.corrupt
    accepted = await attach(rig, model, 2)
    assert (accepted.durable_seq, accepted.need_inventory) == (40, False)


async def test_inventories_that_break_off_again_and_again_leave_the_chunks_of_the_last_one_only(
    model: ModelSegment,
) -> None:
    rig = await StateRig().start()
    model.add(*range(40))
    for session in range(1, 6):
        await attach(rig, model, session)
        if session == 1:
            rig.feed(model.batch(1, 1))
        for chunk in model.inventory(session, chunk_entries=10)[:3]:
            rig.feed(chunk)
        await rig.commit()
        rig.feed(ev.StreamLost(session))
        if session == 3:
            await rig.restart()
    records = [key async for page in rig.store.scan(layout.LOGS_PREFIX) for key, _ in page]
    assert len(records) == 1 + 3
    assert rig.segment(model.segment_id).logged_entries == 40  # the log of before is still the log
    accepted = await attach(rig, model, 6)
    assert (accepted.durable_seq, accepted.need_inventory) == (40, False)
    for chunk in model.inventory(6, chunk_entries=10):
        rig.feed(chunk)
    await rig.commit()
    assert rig.segment(model.segment_id).logged_entries == 40
    assert directory_content(rig, model) == model.content()
    await rig.restart()
    assert directory_content(rig, model) == model.content()
    records = [key async for page in rig.store.scan(layout.LOGS_PREFIX) for key, _ in page]
    assert len(records) == 4


@pytest.mark.parametrize(
    ("first", "last", "groups"),
    [(1, 1, b"junk"), (1, 2, None), (2, 1, None), (0, 0, None), (1, 0, b"")],
    ids=["not groups", "wrong count", "backwards", "zero", "empty"],
)
async def test_a_malformed_batch_closes_its_stream_and_nothing_else(
    model: ModelSegment, first: int, last: int, groups: bytes | None
) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    model.add(1)
    good = model.batch(1, 1).groups
    rig.feed(ev.JournalReceived(1, first, last, good if groups is None else groups))
    (closed,) = rig.take(ef.CloseSession)
    assert closed.status is Status.BAD_REQUEST
    assert not rig.pending
    rig.feed(ev.StreamLost(1))
    assert not (await attach(rig, model, 2)).need_inventory


OVERSIZED = OBJECT_BYTES_MAX + 1


async def test_an_entry_that_the_index_would_refuse_costs_itself_alone(model: ModelSegment) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    model.add(1, 2, length=OBJECT_BYTES_MAX)
    rig.feed(model.batch(1, 1))
    model.add(3)
    model.add(2, length=OVERSIZED)  # whatever it is now, it is not what the directory knows
    model.add(4)
    model.add(5, length=(1 << 32) - 1)
    rig.feed(model.batch(1, 3))
    await rig.commit()
    good = {fingerprint(1): OBJECT_BYTES_MAX, fingerprint(3): 100, fingerprint(4): 100}
    assert directory_content(rig, model) == good
    assert rig.take(ef.AckJournal)[-1] == ef.AckJournal(1, 6)
    (refused,) = rig.take(ef.RefuseEntries)
    assert (refused.session, refused.last_seq, refused.entries) == (1, 6, 2)
    assert str(OBJECT_BYTES_MAX) in refused.reason
    assert "entries_refused" in rig.reports()
    assert rig.take(ef.CloseSession) == []
    await rig.restart()
    assert directory_content(rig, model) == good
    assert rig.corrupt == []
    accepted = await attach(rig, model, 2)
    assert (accepted.durable_seq, accepted.need_inventory) == (6, False)


async def test_an_oversized_object_of_an_inventory_is_left_out(model: ModelSegment) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    model.add(1)
    model.add(2, length=OVERSIZED)
    model.add(3)
    for chunk in model.inventory(1):
        rig.feed(chunk)
    await rig.commit()
    good = {fingerprint(1): 100, fingerprint(3): 100}
    assert directory_content(rig, model) == good
    assert [r.entries for r in rig.take(ef.RefuseEntries)] == [1]
    await rig.restart()
    assert directory_content(rig, model) == good


@pytest.mark.parametrize(
    "last_seq", [SEQ_MAX + 5, (1 << 64) - 1], ids=["over the bound", "the largest there is"]
)
async def test_a_number_beyond_counting_is_refused(model: ModelSegment, last_seq: int) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    model.add(1)
    groups = model.batch(1, 1).groups
    rig.feed(ev.JournalReceived(1, last_seq, last_seq, groups))
    rig.feed(ev.InventoryReceived(1, last_seq, groups, True, True))
    assert [c.status for c in rig.take(ef.CloseSession)] == [Status.BAD_REQUEST] * 2
    assert not rig.pending


async def test_a_batch_of_an_earlier_stream_sent_again_is_not_acked_before_it_is_durable(
    model: ModelSegment,
) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    model.add(1, 2, 3, 4)
    rig.feed(model.batch(1, 1, 2))
    await rig.commit()
    rig.feed(model.batch(1, 3))
    rig.feed(ev.StreamLost(1))
    rig.take(ef.AckJournal)
    rig.feed(ev.SegmentAttached(2, model.registration()))
    (accepted,) = rig.take(ef.AcceptSegment)
    assert accepted.durable_seq == 2
    rig.feed(model.batch(2, 3))
    assert max((ack.durable_seq for ack in rig.take(ef.AckJournal)), default=0) <= 2
    await rig.commit()
    assert rig.take(ef.AckJournal)[-1] == ef.AckJournal(2, 4)


async def test_what_an_earlier_stream_made_durable_is_not_acked_to_one_that_has_not_sent_it(
    model: ModelSegment,
) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    model.add(1, 2, 3, 4)
    rig.feed(model.batch(1, 1, 2))
    await rig.commit()
    rig.feed(model.batch(1, 3))
    rig.feed(ev.StreamLost(1))
    rig.feed(ev.SegmentAttached(2, model.registration()))
    rig.take(ef.AckJournal)
    await rig.commit()
    assert max((ack.durable_seq for ack in rig.take(ef.AckJournal)), default=0) <= 2
    rig.feed(model.batch(2, 3))
    assert rig.take(ef.AckJournal) == [ef.AckJournal(2, 4)]
    assert not rig.pending


async def test_inventory_chunks_out_of_order_or_with_removes_are_refused(model: ModelSegment) -> None:
    model.add(1)
    model.remove(1)
    chunk = ModelSegment(1, random.Random(2)).inventory(1)[0]
    for bad in (
        ev.InventoryReceived(1, 0, b"", False, False),
        ev.InventoryReceived(1, 2, model.batch(1, 1).groups, True, True),
        ev.InventoryReceived(1, 2, b"junk", True, True),
    ):
        rig = await StateRig().start()
        await attach(rig, model, 1)
        rig.feed(bad)
        assert [c.status for c in rig.take(ef.CloseSession)] == [Status.BAD_REQUEST]
    assert chunk.first and chunk.last
    rig = await StateRig().start()
    await attach(rig, model, 1)
    rig.feed(ev.InventoryReceived(1, 2, b"", True, False))
    assert rig.take(ef.CloseSession) == []
    rig.feed(ev.InventoryReceived(1, 3, b"", False, True))  # of another one
    assert [c.status for c in rig.take(ef.CloseSession)] == [Status.BAD_REQUEST]


async def test_chunks_of_an_inventory_that_was_given_up_are_not_found(model: ModelSegment) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    model.add(1, 2, 3)
    for chunk in model.inventory(1, chunk_entries=1)[:2]:
        rig.feed(chunk)
    rig.feed(ev.StreamLost(1))
    await rig.commit()
    assert directory_content(rig, model) == {}
    accepted = await attach(rig, model, 2)
    rig.feed(model.batch(2, accepted.durable_seq + 1))
    await rig.commit()
    assert directory_content(rig, model) == model.content()


async def test_an_inventory_behind_one_that_is_stored_is_not_durable_with_it(model: ModelSegment) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    model.add(*range(10))
    rig.feed(model.inventory(1)[0])
    first = len(rig.pending)
    model.add(10)
    rig.feed(model.inventory(1)[0])
    await rig.commit(first)
    segment = rig.segment(model.segment_id)
    assert segment.durable_snapshot != segment.record.snapshot
    await rig.fail_commits()
    await attach(rig, model, 2)
    assert rig.segment(model.segment_id).record.snapshot.generation != 2, "nobody knows whether it is there"
    for chunk in model.inventory(2):
        rig.feed(chunk)
    await rig.commit()
    await rig.restart()
    assert directory_content(rig, model) == model.content()
    assert not rig.corrupt and not rig.segment(model.segment_id).damaged


async def test_a_failed_commit_closes_the_stream_and_the_journal_is_resumed_without_a_hole(
    model: ModelSegment,
) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    model.add(1, 2)
    rig.feed(model.batch(1, 1))
    await rig.commit()
    for applied in (False, True):
        model.add(3, 4, 5)
        durable = rig.segment(model.segment_id).durable_seq
        rig.feed(model.batch(1 if not applied else 3, durable + 1, durable + 2))
        rig.feed(model.batch(1 if not applied else 3, durable + 3))
        await rig.fail_commits(applied=applied)
        assert {c.session for c in rig.take(ef.CloseSession)} == {1 if not applied else 3}
        rig.feed(ev.StreamLost(1 if not applied else 3))
        accepted = await attach(rig, model, 2 if not applied else 4)
        assert accepted.durable_seq == durable
        # Sent again, cut into other batches.
        session = accepted.session
        rig.feed(model.batch(session, durable + 1, durable + 1))
        rig.feed(model.batch(session, durable + 2))
        await rig.commit()
        assert directory_content(rig, model) == model.content()
        if not applied:
            rig.feed(ev.StreamLost(session))
            await attach(rig, model, 3)
    await rig.restart()
    assert directory_content(rig, model) == model.content()
    assert rig.segment(model.segment_id).durable_seq == model.last_seq
    assert not rig.segment(model.segment_id).damaged


async def test_a_batch_larger_than_a_record_is_split_and_acked_whole(model: ModelSegment) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    count = RECORD_ENTRIES_MAX * 2 + 5
    model.add(*(i % 300 for i in range(count)))
    rig.feed(model.batch(1, 1))
    assert len(rig.pending) == 3
    await rig.commit()
    assert rig.take(ef.AckJournal)[-1] == ef.AckJournal(1, count)
    assert directory_content(rig, model) == model.content()
    await rig.restart()
    assert directory_content(rig, model) == model.content()


async def test_journals_of_a_segment_that_left_or_was_never_accepted_are_not_taken(
    model: ModelSegment,
) -> None:
    rig = await StateRig().start()
    model.add(1)
    rig.feed(model.batch(7, 1))
    assert not rig.pending
    rig.feed(ev.SegmentAttached(1, model.registration()))
    rig.feed(model.batch(1, 1))  # before the registration is durable
    assert [c.status for c in rig.take(ef.CloseSession)] == [Status.BAD_REQUEST]
    await rig.commit()
    rig.feed(ev.SegmentLeaving(1, "done"))
    await rig.commit()
    rig.feed(model.batch(1, 1))
    assert not rig.pending
    assert rig.segment(model.segment_id).state is SegmentState.GONE


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_happens_the_directory_holds_what_was_acked(seed: int) -> None:
    """Random journals, overlaps, gaps, failed and unknown commits, lost streams, restarts of both sides,
    inventories."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    rig = await StateRig(StateLimits(log=LogLimits(2.0, 10**9))).start()
    models = [ModelSegment(i, rng) for i in range(2)]
    session = 0
    sessions: dict[bytes, int] = {}
    acked: dict[bytes, int] = {}
    numbers = range(60)
    sent: dict[bytes, int] = {}
    # An inventory that was given up has shown the index entries of this number: until then it is ahead of
    # durable_seq.
    ahead: dict[bytes, int] = {}

    def absorb() -> None:
        for effect in rig.effects:
            for model in models:
                if getattr(effect, "session", None) != sessions.get(model.segment_id, -1):
                    continue
                if isinstance(effect, ef.AckJournal):
                    acked[model.segment_id] = max(acked[model.segment_id], effect.durable_seq)
                elif isinstance(effect, ef.AcceptSegment):
                    sent[model.segment_id] = effect.durable_seq
                    if effect.need_inventory:
                        inventory(model)
                elif isinstance(effect, ef.RequestInventory):
                    inventory(model)
                elif isinstance(effect, ef.CloseSession):
                    lost.append(model)
        rig.effects.clear()

    def inventory(model: ModelSegment) -> None:
        todo.extend(model.inventory(sessions[model.segment_id], chunk_entries=rng.randint(1, 20)))
        sent[model.segment_id] = ahead[model.segment_id] = model.last_seq

    for step in range(300):
        model = rng.choice(models)
        todo: list[ev.Event] = []
        lost: list[ModelSegment] = []
        current = sessions.get(model.segment_id)
        dice = rng.random()
        if current is None or dice < 0.03:
            session += 1
            if current is not None and rng.random() < 0.5:
                rig.feed(ev.StreamLost(current))
            if rng.random() < 0.1:
                model.new_pool()
                ahead.pop(model.segment_id, None)
                acked[model.segment_id] = 0
            acked.setdefault(model.segment_id, 0)
            kept_from = acked[model.segment_id] + (1 if rng.random() < 0.8 else 3)
            model.oldest_kept_seq = min(kept_from, model.last_seq + 1)
            sessions[model.segment_id] = session
            sent.pop(model.segment_id, None)
            rig.feed(ev.SegmentAttached(session, model.registration()))
        elif dice < 0.08:
            await rig.fail_commits(applied=rng.random() < 0.5)
        elif dice < 0.10:
            await rig.commit(rng.randint(0, 3))
            absorb()
            await rig.restart()
            sessions.clear()
            sent.clear()
            ahead.clear()
        elif dice < 0.5:
            await rig.commit(rng.randint(0, 3))
        elif model.segment_id in sent:
            for _ in range(rng.randint(1, 8)):
                if rng.random() < 0.6:
                    model.add(rng.choice(numbers), length=rng.randint(1, 9))
                else:
                    model.remove(rng.choice(numbers))
            first = sent[model.segment_id] + 1
            if rng.random() < 0.1:
                first = max(1, first - rng.randint(1, 4))  # an overlap
            elif rng.random() < 0.03 and model.last_seq > first:
                first += 1  # a gap
            rig.feed(model.batch(current, first))
            sent[model.segment_id] = model.last_seq
        absorb()
        for event in todo:
            rig.feed(event)
        for closed in lost:
            rig.feed(ev.StreamLost(sessions.pop(closed.segment_id, -1)))
            sent.pop(closed.segment_id, None)
        for known in models:
            segment = rig.state.segments.get(known.segment_id)
            if (
                segment is None
                or segment.record.endpoint.pool_id != known.pool_id
                or segment.state is SegmentState.GONE
            ):
                continue
            assert segment.durable_seq <= segment.accepted_seq
            if segment.inventory is None and not segment.damaged and not _inventory_on_its_way(rig, known):
                if segment.durable_seq >= ahead.get(known.segment_id, 0):
                    held = directory_content(rig, known)
                    assert held == known.content(segment.durable_seq), f"step {step}"
                assert segment.durable_seq >= acked.get(known.segment_id, 0)
    await rig.commit()
    await rig.restart()
    for known in models:
        segment = rig.state.segments.get(known.segment_id)
        if segment is not None and segment.record.endpoint.pool_id == known.pool_id and not segment.damaged:
            assert directory_content(rig, known) == known.content(segment.durable_seq)
    assert not rig.corrupt


def _inventory_on_its_way(rig: StateRig, model: ModelSegment) -> bool:
    from kvstore.master.state.changes import InventoryChunkStored, InventoryStored

    return any(
        isinstance(commit.change, InventoryChunkStored | InventoryStored)
        and commit.change.segment_id == model.segment_id
        for commit in rig.pending
    )


@pytest.mark.parametrize("applied", [False, True], ids=["not written", "written all the same"])
async def test_no_record_names_a_snapshot_whose_commit_failed(model: ModelSegment, applied: bool) -> None:
    rig = await StateRig().start()
    await attach(rig, model, 1)
    model.add(1, 2, 3)
    rig.feed(model.batch(1, 1))
    await rig.commit()
    before = rig.segment(model.segment_id).record
    for chunk in model.inventory(1, chunk_entries=1):
        rig.feed(chunk)
    await rig.fail_commits(applied)
    rig.feed(ev.StreamLost(1))
    rig.feed(ev.DrainRequested(1, model.segment_id, True))
    await rig.commit()
    assert rig.segment(model.segment_id).record.snapshot == before.snapshot
    accepted = await attach(rig, model, 2)
    assert accepted.need_inventory, "what is stored is not known any more"
    for chunk in model.inventory(2):
        rig.feed(chunk)
    await rig.commit()
    await rig.restart()
    assert directory_content(rig, model) == model.content()
    assert rig.segment(model.segment_id).record.draining


async def test_an_inventory_of_one_chunk_too_many_is_refused(
    model: ModelSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_logs, "INVENTORY_CHUNKS_MAX", 3)
    for chunks, fits in ((3, True), (4, False)):
        rig = await StateRig().start()
        await attach(rig, model, 1)
        model.log.clear()
        model.add(*range(chunks))
        for chunk in model.inventory(1, chunk_entries=1):
            rig.feed(chunk)
        refused = rig.take(ef.CloseSession)
        assert [c.status for c in refused] == ([] if fits else [Status.BAD_REQUEST])
        assert fits or "at most 3 chunks" in refused[0].reason
