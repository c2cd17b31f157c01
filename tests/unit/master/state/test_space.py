"""What the master does when its metadata store fills up."""

from __future__ import annotations

import random

from kvstore.master.metadata.store import SpaceLevel
from kvstore.master.state import effects as ef
from kvstore.master.state import events as ev
from kvstore.master.state.directory_state import StateLimits
from kvstore.master.state.log_compaction import LogLimits
from kvstore_client.protocol import Status
from support.state_rig import ModelSegment, StateRig, attach, directory_content


async def rig_with_segment(limits: StateLimits | None = None) -> tuple[StateRig, ModelSegment]:
    rig = await StateRig(limits).start()
    model = ModelSegment(1, random.Random(1))
    await attach(rig, model, 1)
    return rig, model


def measured(level: SpaceLevel) -> ev.SpaceMeasured:
    return ev.SpaceMeasured(level, "as the test says")


async def test_a_tight_store_has_its_logs_compacted_long_before_they_would_be() -> None:
    limits = StateLimits(log=LogLimits(tight_compaction_floor_entries=10))
    rig, model = await rig_with_segment(limits)
    model.add(*range(100))
    model.remove(*range(50))
    rig.feed(model.batch(1, 1))
    await rig.commit()
    assert rig.take(ef.CompactLog) == []
    rig.feed(measured(SpaceLevel.TIGHT))
    (order,) = rig.take(ef.CompactLog)
    assert (order.segment_id, order.through_seq) == (model.segment_id, 150)
    assert "metadata_space_tight" in rig.reports()
    rig.feed(measured(SpaceLevel.TIGHT))
    assert rig.take(ef.CompactLog) == []  # it is being done
    assert rig.reports() == []


async def test_a_full_store_takes_no_journal_and_nothing_is_lost_when_there_is_space_again() -> None:
    rig, model = await rig_with_segment()
    model.add(1, 2, 3)
    rig.feed(model.batch(1, 1))
    await rig.commit()
    rig.feed(measured(SpaceLevel.FULL))
    rig.take(ef.AckJournal)
    model.add(4, 5)
    assert rig.feed(model.batch(1, 4)) == []
    await rig.commit()
    assert rig.take(ef.AckJournal) == []
    assert len(directory_content(rig, model)) == 3

    rig.feed(measured(SpaceLevel.NORMAL))
    (closed,) = rig.take(ef.CloseSession)
    assert (closed.session, closed.status) == (1, Status.UNAVAILABLE)
    # What comes on the old stream meanwhile would leave a gap.
    model.add(6)
    assert rig.feed(model.batch(1, 6)) == []
    rig.feed(ev.StreamLost(1))
    accepted = await attach(rig, model, 2)
    assert (accepted.durable_seq, accepted.need_inventory) == (3, False)
    rig.feed(model.batch(2, 4))
    await rig.commit()
    assert directory_content(rig, model) == model.content()


async def test_an_inventory_that_was_cut_short_by_a_full_store_is_sent_again_whole() -> None:
    rig, model = await rig_with_segment()
    model.add(*range(40))
    chunks = model.inventory(1, chunk_entries=10)
    rig.feed(chunks[0])
    rig.feed(chunks[1])
    rig.feed(measured(SpaceLevel.FULL))
    for chunk in chunks[2:]:
        assert rig.feed(chunk) == []
    await rig.commit()
    rig.feed(measured(SpaceLevel.NORMAL))
    assert len(rig.take(ef.CloseSession)) == 1
    rig.feed(ev.StreamLost(1))
    await attach(rig, model, 2)
    for chunk in model.inventory(2, chunk_entries=10):
        rig.feed(chunk)
    await rig.commit()
    assert directory_content(rig, model) == model.content()
    await rig.restart()
    assert directory_content(rig, model) == model.content()
