"""What a restarted master makes of a store in which records are damaged or lost."""

from __future__ import annotations

import random

import pytest

from kvstore.common.errors import CorruptRecordError, StoreError
from kvstore.master.metadata.store import COMMITS_LOST_KEY, Delete, KeyUpdate
from kvstore.master.recovery import load, take_over
from kvstore.master.state import effects as ef
from kvstore.master.state import layout
from kvstore.master.state.records import ENVELOPE_BYTES, Record, RecordKind
from kvstore_client.protocol import OBJECT_BYTES_MAX
from support.state_rig import ModelSegment, StateRig, attach, directory_content


async def filled() -> tuple[StateRig, ModelSegment, ModelSegment]:
    """Two segments of 30 objects, in journal records of 10."""
    rig = await StateRig().start()
    rng = random.Random(3)
    models = ModelSegment(1, rng), ModelSegment(2, rng)
    for session, model in enumerate(models):
        await attach(rig, model, session)
        model.add(*range(session * 30, session * 30 + 30))
        for first in (1, 11, 21):
            rig.feed(model.batch(session, first, first + 9))
    await rig.commit()
    return rig, *models


@pytest.mark.parametrize("first_seq", [1, 11, 21])
async def test_a_corrupt_journal_record_costs_its_own_entries_and_an_inventory_heals_it(
    first_seq: int,
) -> None:
    rig, hurt, whole = await filled()
    key = layout.journal_key(hurt.segment_id, first_seq)
    stored = await rig.store.get(key)
    assert stored is not None
    for position in (0, 4, 7, 8, 16, 24, 28, ENVELOPE_BYTES, len(stored) - 1):
        bad = bytearray(stored)
        bad[position] ^= 0x10
        await rig.write_raw(key, bytes(bad))
        rig.corrupt.clear()
        await rig.restart()
        assert rig.corrupt == ["journal"], f"byte {position}"
        lost = {fp for _, fp, _ in hurt.log[first_seq - 1 : first_seq + 9]}
        held = directory_content(rig, hurt)
        assert held == {fp: n for fp, n in hurt.content().items() if fp not in lost}
        assert directory_content(rig, whole) == whole.content()
        assert rig.segment(hurt.segment_id).damaged and not rig.segment(whole.segment_id).damaged
    accepted = await attach(rig, hurt, 10)
    if first_seq == 21:
        # The newest one: the segment simply sends it again.
        assert accepted.durable_seq == 20
    if accepted.need_inventory:
        for chunk in hurt.inventory(10):
            rig.feed(chunk)
    else:
        rig.feed(hurt.batch(10, accepted.durable_seq + 1))
    await rig.commit()
    rig.corrupt.clear()
    await rig.restart()
    assert directory_content(rig, hurt) == hurt.content()
    assert rig.corrupt == []
    assert not rig.segment(hurt.segment_id).damaged


async def test_a_stored_entry_that_the_index_refuses_costs_itself_alone() -> None:
    rig, hurt, whole = await filled()
    hurt.add(100)
    hurt.add(101, length=OBJECT_BYTES_MAX + 1)
    hurt.add(102)
    record = Record(RecordKind.JOURNAL, 31, 33, hurt.batch(0, 31).groups)
    await rig.write_raw(layout.journal_key(hurt.segment_id, 31), record.encode())
    await rig.restart()
    assert rig.corrupt == ["entry"]
    good = {fp: n for fp, n in hurt.content().items() if n <= OBJECT_BYTES_MAX}
    assert len(good) == 32
    assert directory_content(rig, hurt) == good
    assert directory_content(rig, whole) == whole.content()
    accepted = await attach(rig, hurt, 10)
    assert (accepted.durable_seq, accepted.need_inventory) == (33, False)


async def test_a_missing_record_is_noticed() -> None:
    rig, hurt, whole = await filled()
    await rig.store.commit((Delete(layout.journal_key(hurt.segment_id, 11)),), rig.fence)
    await rig.restart()
    assert (await attach(rig, hurt, 10)).need_inventory
    assert not (await attach(rig, whole, 11)).need_inventory


async def test_a_corrupt_or_missing_snapshot_chunk_costs_its_own_entries() -> None:
    rig, hurt, whole = await filled()
    for chunk in hurt.inventory(0, chunk_entries=10):
        rig.feed(chunk)
    await rig.commit()
    record = rig.segment(hurt.segment_id).record
    assert record.snapshot.chunks == 3
    key = layout.snapshot_key(hurt.segment_id, record.snapshot.generation, 1)
    await rig.write_raw(key, b"scrambled")
    await rig.restart()
    assert rig.corrupt == ["snapshot"]
    assert len(directory_content(rig, hurt)) == 20
    assert rig.segment(hurt.segment_id).damaged
    await rig.store.commit((Delete(key),), rig.fence)
    await rig.restart()
    assert rig.segment(hurt.segment_id).damaged
    assert directory_content(rig, whole) == whole.content()


async def test_a_corrupt_segment_record_costs_its_pages_only_and_the_segment_starts_anew() -> None:
    rig, hurt, whole = await filled()
    await rig.write_raw(layout.segment_key(hurt.segment_id), b"scrambled")
    await rig.restart()
    assert rig.corrupt == ["segment"]
    assert directory_content(rig, whole) == whole.content()
    assert rig.state.segments.get(hurt.segment_id) is None
    assert await rig.store.get(layout.segment_key(hurt.segment_id)) is None
    assert [page async for page in rig.store.scan(layout.log_prefix(hurt.segment_id))] == []
    hurt.oldest_kept_seq = 31
    accepted = await attach(rig, hurt, 10)
    assert accepted.need_inventory
    for chunk in hurt.inventory(10):
        rig.feed(chunk)
    await rig.commit()
    await rig.restart()
    assert directory_content(rig, hurt) == hurt.content()


async def test_after_lost_commits_every_segment_brings_its_inventory() -> None:
    rig, one, other = await filled()
    await rig.write_raw(COMMITS_LOST_KEY, b"")
    await rig.restart()
    assert (await attach(rig, one, 10)).need_inventory
    assert (await attach(rig, other, 11)).need_inventory
    for chunk in [*one.inventory(10), *other.inventory(11)]:
        rig.feed(chunk)
    await rig.commit()
    await rig.restart()
    assert not (await attach(rig, one, 12)).need_inventory
    assert await rig.store.get(COMMITS_LOST_KEY) is None


async def test_a_corrupt_cluster_record_stops_the_start_with_a_remedy() -> None:
    rig, _, _ = await filled()
    await rig.write_raw(layout.CLUSTER_KEY, b"scrambled")
    with pytest.raises(StoreError, match="restore"):
        await rig.restart()


async def test_leftovers_of_unfinished_snapshots_and_of_unknown_segments_are_removed() -> None:
    rig, model, _ = await filled()
    body = model.inventory(0)[0].groups
    chunk = Record(RecordKind.SNAPSHOT, 1, 1, body).encode()
    await rig.write_raw(layout.snapshot_key(model.segment_id, 9, 0), chunk)
    await rig.write_raw(layout.journal_key(b"unknown-segment!", 1), b"anything")
    await rig.write_raw(layout.LOGS_PREFIX + b"no such form", b"anything")
    before = rig.segment(model.segment_id).logged_entries
    await rig.restart()
    keys = [key async for page in rig.store.scan(layout.LOGS_PREFIX) for key, _ in page]
    assert len(keys) == 6
    assert rig.segment(model.segment_id).logged_entries == before
    assert rig.segment(model.segment_id).next_generation == 10
    assert directory_content(rig, model) == model.content()


async def test_the_cluster_keeps_its_id() -> None:
    rig, _, _ = await filled()
    cluster_id = rig.state.cluster_id
    assert any(cluster_id)
    await rig.restart()
    assert rig.state.cluster_id == cluster_id


async def test_a_standby_that_saw_the_cluster_go_founds_another_one_when_it_leads() -> None:
    rig, _, _ = await filled()
    standby = await load(rig.store, lambda record: None)
    followed = standby.cluster
    assert followed is not None
    standby.follow(KeyUpdate(layout.CLUSTER_KEY, None))
    founded = (await take_over(standby, rig.store, await rig.store.acquire())).cluster
    assert founded.cluster_id != followed.cluster_id
    other = await load(rig.store, lambda record: None)
    other.follow(KeyUpdate(layout.CLUSTER_KEY, founded.encode()))
    assert other.cluster == founded


def test_records_refuse_every_flipped_bit_of_their_body_and_every_cut() -> None:
    whole = Record(RecordKind.JOURNAL, 5, 9, b"some body").encode()
    assert Record.decode(whole, RecordKind.JOURNAL) == Record(RecordKind.JOURNAL, 5, 9, b"some body")
    for bit in range(ENVELOPE_BYTES * 8, len(whole) * 8):
        bad = bytearray(whole)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecordError):
            Record.decode(bytes(bad), RecordKind.JOURNAL)
    for cut in range(len(whole)):
        with pytest.raises(CorruptRecordError):
            Record.decode(whole[:cut], RecordKind.JOURNAL)
    with pytest.raises(CorruptRecordError):
        Record.decode(whole, RecordKind.SNAPSHOT)


async def test_a_corrupt_record_is_reported_where_an_operator_looks() -> None:
    rig, hurt, _ = await filled()
    await rig.write_raw(layout.journal_key(hurt.segment_id, 11), b"x")
    await rig.restart()
    assert rig.corrupt == ["journal"]
    assert (await attach(rig, hurt, 5)).need_inventory
    assert rig.take(ef.RequestInventory) == []  # the answer to the registration has asked for it already
