"""A segment that is to be drained before it ends: whom it asks, and when it stops to wait."""

from __future__ import annotations

import asyncio

import pytest
from kvstore.v1 import control_pb2 as pb

from kvstore.segment import draining
from kvstore.segment.draining import drained


class Session:
    """A master that answers with these phases, one a question; the last again and again."""

    def __init__(self, *phases: int) -> None:
        self.phases = list(phases)
        self.asked = 0
        self.drain_told: pb.DrainTold | None = None

    async def ask_drain(self) -> None:
        self.asked += 1
        if self.phases:
            phase = self.phases.pop(0) if len(self.phases) > 1 else self.phases[0]
            self.drain_told = pb.DrainTold(phase=phase)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "ASK_S", 0.001)
    monkeypatch.setattr(draining, "UNANSWERED_S", 0.2)


@pytest.mark.parametrize(("phase", "why"), [(3, "drained"), (4, "no room"), (5, "no target")])
async def test_it_waits_until_the_master_says_that_it_is_over(phase: int, why: str) -> None:
    session = Session(1, 2, 2, phase)
    assert await drained(lambda: session, 60, asyncio.Event()) == why
    assert session.asked == 4


async def test_another_master_goes_on_with_it() -> None:
    sessions = [Session(2), Session(3)]
    turns = iter([sessions[0], sessions[0], None, None])
    assert await drained(lambda: next(turns, sessions[1]), 60, asyncio.Event()) == "drained"
    assert sessions[1].asked == 1


async def test_a_master_that_never_answers_is_not_waited_for() -> None:
    assert await drained(lambda: Session(), 60, asyncio.Event()) == "unanswered"
    assert await drained(lambda: None, 60, asyncio.Event()) == "unanswered"


async def test_it_has_a_bound_and_ends_when_it_is_told_to() -> None:
    session = Session(2)
    assert await drained(lambda: session, 0.05, asyncio.Event()) == "timeout"
    give_up = asyncio.Event()
    task = asyncio.create_task(drained(lambda: session, 60, give_up))
    await asyncio.sleep(0)
    give_up.set()
    assert await asyncio.wait_for(task, 20) == "given up"
