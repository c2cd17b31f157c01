"""The line that says now and then what an engine has had of the store."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from hicache_adapter.activity_log import INTERVAL_S, ActivityLog
from hicache_adapter.recorder import Recorder


class Rig:
    def __init__(self) -> None:
        self.now = 0.0
        self.recorder = Recorder()
        self.recorder.watch("kv")
        self.troubles: dict[str, str] = {}
        self.asked = 0
        self.log = ActivityLog("sglang tp 0/2", self.counters, lambda: self.now)

    def counters(self) -> dict[str, Any]:
        self.asked += 1
        return {**self.recorder.counters(), "timeouts": self.asked, "troubles": self.troubles}

    def lines(self, caplog: pytest.LogCaptureFixture) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.INFO, "hicache_adapter"):
            if self.log.is_due():
                self.log.speak()
        return [record.getMessage() for record in caplog.records]


def test_a_line_an_interval_says_what_has_grown(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.recorder.asked("kv", 10, 3)
    rig.recorder.loaded("kv", [True, True, False], 1_000_000)
    rig.now = INTERVAL_S - 1
    assert rig.lines(caplog) == []
    rig.now = INTERVAL_S
    (line,) = rig.lines(caplog)
    for said in (
        "sglang tp 0/2",
        "60 s",
        "asked for 10, there 3",
        "loaded 2 (2.0 MB), missed 1",
        "troubles: none",
    ):
        assert said in line
    rig.recorder.stored("swa", [True, False], 500_000)
    rig.troubles = {"segment a:1": "segment a:1 does not answer"}
    rig.now = 2 * INTERVAL_S
    (line,) = rig.lines(caplog)
    assert "swa pages: " in line and "stored 1 (0.5 MB), refused 1" in line and "does not answer" in line
    assert "kv pages" not in line


def test_an_engine_that_asks_for_nothing_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    for minute in range(1, 4):
        rig.now = minute * INTERVAL_S
        assert rig.lines(caplog) == []


def test_counters_are_read_once_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.now = INTERVAL_S
    for _ in range(100):
        rig.lines(caplog)
    assert rig.asked == 1
