"""What inventories and drops have doomed goes in slices, between everything else that happens to the same segments."""

from __future__ import annotations

import random
from collections import Counter
from itertools import count

import pytest

from kvstore.master.state import effects as ef
from kvstore.master.state import events as ev
from support.state_rig import ModelSegment, StateRig, attach, directory_content, fingerprint

PAGES = 60


class Sharing:
    """A cluster of segments that hold some of the same pages; each changes, restarts, is inventoried and leaves at any moment."""

    def __init__(self, rig: StateRig, rng: random.Random) -> None:
        self.rig = rig
        self.rng = rng
        self.models = [ModelSegment(number, rng) for number in range(3)]
        self.sessions: dict[bytes, int] = {}
        self.numbers = count(1)
        self.did: Counter[str] = Counter()

    async def attach(self, model: ModelSegment) -> None:
        session = self.sessions[model.segment_id] = next(self.numbers)
        accepted = await attach(self.rig, model, session)
        if accepted.need_inventory:
            await self.inventory(model)
        elif accepted.durable_seq < model.last_seq:
            self.rig.feed(model.batch(session, accepted.durable_seq + 1))
            await self.rig.commit()

    async def inventory(self, model: ModelSegment) -> None:
        """In chunks; any number of sweeps, and a change of another segment, may come between two of them."""
        session = self.sessions[model.segment_id]
        for chunk in model.inventory(session, chunk_entries=7):
            self.rig.feed(chunk)
            await self.rig.commit()
            if self.rng.random() < 0.5:
                self.sweep()
            if self.rng.random() < 0.3:
                await self.change(self.rng.choice([m for m in self.models if m is not model]))
        self.did["inventory"] += 1

    async def change(self, model: ModelSegment) -> None:
        if (session := self.sessions.get(model.segment_id)) is None:
            return
        first = model.last_seq + 1
        held = sorted(number for number in range(PAGES) if fingerprint(number) in model.content())
        if held and self.rng.random() < 0.4:
            model.remove(*self.rng.sample(held, min(len(held), 5)))
        model.add(*(self.rng.randrange(PAGES) for _ in range(self.rng.randrange(1, 12))), length=100)
        self.rig.feed(model.batch(session, first))
        await self.rig.commit()

    async def lose_entries(self, model: ModelSegment) -> None:
        """What the segment can't send again: the master asks for an inventory when it attaches anew."""
        self.rig.feed(ev.StreamLost(self.sessions[model.segment_id]))
        model.add(*(self.rng.randrange(PAGES) for _ in range(5)))
        held = sorted(number for number in range(PAGES) if fingerprint(number) in model.content())
        model.remove(*self.rng.sample(held, len(held) // 2))
        model.oldest_kept_seq = model.last_seq + 1
        await self.attach(model)

    async def begin_inventory_and_break_off(self, model: ModelSegment) -> None:
        self.rig.feed(ev.StreamLost(self.sessions[model.segment_id]))
        model.oldest_kept_seq = model.last_seq + 2
        session = self.sessions[model.segment_id] = next(self.numbers)
        model.add(self.rng.randrange(PAGES))
        await attach(self.rig, model, session)
        for chunk in model.inventory(session, chunk_entries=7)[:2]:
            self.rig.feed(chunk)
            await self.rig.commit()
        self.did["broken off"] += 1
        self.rig.feed(ev.StreamLost(session))
        await self.attach(model)

    async def new_pool(self, model: ModelSegment) -> None:
        self.rig.feed(ev.StreamLost(self.sessions[model.segment_id]))
        model.new_pool()
        self.did["new pool"] += 1
        await self.attach(model)

    async def leave(self, model: ModelSegment) -> None:
        self.rig.feed(ev.SegmentLeaving(self.sessions.pop(model.segment_id), "scaled in"))
        await self.rig.commit()
        self.did["left"] += 1
        model.new_pool()
        if self.rng.random() < 0.7:
            self.sweep()
        await self.attach(model)

    def sweep(self) -> None:
        self.did["swept"] += self.rig.state.index.sweep(self.rng.randrange(1, 9))


@pytest.mark.parametrize("seed", range(12))
async def test_the_directory_is_what_the_segments_hold_however_slices_fall_between_changes(seed: int) -> None:
    rng = random.Random(seed)
    rig = await StateRig().start()
    rig.sweeps_at_once = False
    cluster = Sharing(rig, rng)
    for model in cluster.models:
        await cluster.attach(model)
    steps = (
        cluster.change,
        cluster.change,
        cluster.lose_entries,
        cluster.begin_inventory_and_break_off,
        cluster.new_pool,
        cluster.leave,
    )
    for _ in range(120):
        model = rng.choice(cluster.models)
        await rng.choice(steps)(model)
        if rng.random() < 0.5:
            cluster.sweep()
        # Whatever is still to be swept, nothing that a segment holds is missing.
        for each in cluster.models:
            assert directory_content(rig, each).keys() >= each.content().keys(), seed
    assert rig.take(ef.SweepIndex)
    while rig.state.index.sweep(5):
        pass
    for each in cluster.models:
        assert directory_content(rig, each) == each.content(), seed
    assert rig.state.index.entry_count == sum(len(each.content()) for each in cluster.models), seed
    assert min(cluster.did[what] for what in ("inventory", "broken off", "new pool", "left", "swept")) > 0
