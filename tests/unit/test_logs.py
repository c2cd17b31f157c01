"""What can happen again and again must not fill a server's log, and must not be lost in it."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvstore.common import logs
from kvstore.common.backoff import Backoff
from kvstore.common.errors import StoreError
from kvstore.common.logs import LogThrottle, log_throttled
from kvstore.master.ha import follower as follower_module
from kvstore.master.ha.follower import Follower
from kvstore.master.metrics import MasterMetrics
from kvstore.master.roles import Roles
from kvstore.segment.attach_session import Registration
from kvstore.segment.control_client import ControlClient
from kvstore.segment.journal_pump import JournalPump
from support.master_peers import until
from support.memory_replicated_store import MemoryReplicatedStore


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(logs, "_throttle", LogThrottle(clock=clock))
    return clock


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [record.fields for record in caplog.records if record.getMessage() == event]  # type: ignore[attr-defined]


def test_the_first_line_comes_at_once_and_the_next_after_a_minute_with_how_many_were_left_out(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("test")
    for second in range(121):
        clock.now_s = second
        log_throttled(logger, logging.WARNING, "bad_frame", "10.0.0.1", peer="p", at=second)
    log_throttled(logger, logging.WARNING, "bad_frame", "10.0.0.2", peer="q")
    log_throttled(logger, logging.WARNING, "unauthorized", "10.0.0.1", peer="p")
    assert said(caplog, "bad_frame") == [
        {"peer": "p", "at": 0},
        {"peer": "p", "at": 60, "repeated": 59},
        {"peer": "p", "at": 120, "repeated": 59},
        {"peer": "q"},
    ]
    assert said(caplog, "unauthorized") == [{"peer": "p"}]


def test_a_level_that_is_off_takes_no_place(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("test")
    logger.setLevel(logging.WARNING)
    log_throttled(logger, logging.DEBUG, "map_not_mirrored", "a")
    log_throttled(logger, logging.WARNING, "map_not_mirrored", "a")
    assert len(said(caplog, "map_not_mirrored")) == 1


def test_more_strangers_than_there_are_places_share_one() -> None:
    clock = Clock()
    throttle = LogThrottle(keys_max=8, clock=clock)
    passed = [throttle.passes("test", "bad_frame", str(number)) for number in range(100)]
    assert passed == [0] * 9 + [None] * 91
    assert len(throttle._said) == 8
    clock.now_s = 60.0
    assert [throttle.passes("test", "bad_frame", str(number)) for number in range(100, 109)] == [0] * 8 + [91]


class DeadMasters(ControlClient):
    """Each of them can't be reached for a reason of its own."""

    attempts = 0

    async def _attach(self, master: str) -> None:
        self.attempts += 1
        raise ConnectionRefusedError(master) if master == "a:1" else TimeoutError(master)


async def test_masters_that_are_away_for_different_reasons_do_not_fill_the_segments_log(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    registration = Registration(b"s" * 16, b"p" * 16, "127.0.0.1", 7450, "", 1 << 20)
    nothing = cast(Any, SimpleNamespace(cluster_id=b""))
    client = DeadMasters(
        ["a:1", "b:1"],
        registration,
        nothing,
        dict,
        backoff=Backoff(0.0001, 0.0002),
        pump=JournalPump(object()),
    )
    running = asyncio.create_task(client.run())
    await until(lambda: client.attempts >= 40, "40 attempts")
    assert [line["master"] for line in said(caplog, "not_attached")] == ["a:1", "b:1"]
    clock.now_s = 60.0
    await until(lambda: len(said(caplog, "not_attached")) == 4, "the next lines")
    assert sum(line.get("repeated", 0) for line in said(caplog, "not_attached")) >= 38
    client.leave("the test is over")
    await running


class StoreAway(MemoryReplicatedStore):
    asked = 0

    async def revisions(self) -> tuple[int, int]:
        self.asked += 1
        raise StoreError("etcd does not answer")


async def test_a_standby_whose_store_is_away_says_so_once_a_minute(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "LAG_PERIOD_S", 0.0001)
    store = StoreAway()
    watching = asyncio.create_task(Follower(store, Roles(), MasterMetrics()).watch_lag())
    await until(lambda: store.asked >= 20, "20 attempts")
    watching.cancel()
    assert said(caplog, "watch_lag_unknown") == [{"error": "etcd does not answer"}]
