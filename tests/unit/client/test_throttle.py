"""A path that fails all the time must not fill the log."""

from __future__ import annotations

import logging

import pytest

from kvstore_client.throttle import ThrottledLog


def test_one_message_a_topic_passes_and_the_rest_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    log = ThrottledLog(logging.getLogger("test"), interval_s=3600)
    for number in range(100):
        log.log(logging.WARNING, "get", "failed %d", number)
    log.log(logging.WARNING, "set", "other topic")
    assert [record.getMessage() for record in caplog.records] == ["failed 0", "other topic"]


def test_the_next_message_says_how_many_were_swallowed(caplog: pytest.LogCaptureFixture) -> None:
    log = ThrottledLog(logging.getLogger("test"), interval_s=3600)
    log.log(logging.WARNING, "get", "failed")
    log.log(logging.WARNING, "get", "failed")
    log._interval_s = 0
    log.log(logging.WARNING, "get", "failed")
    assert caplog.records[-1].getMessage() == "failed (and 1 more like it)"


def test_topics_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    log = ThrottledLog(logging.getLogger("test"))
    for number in range(10_000):
        log.log(logging.DEBUG, f"topic {number}", "x")
    assert len(log._topics) <= ThrottledLog._TOPICS_MAX
