"""Lines about what is wrong: one a kind and change, bounded, each with its remedy."""

from __future__ import annotations

import logging

import pytest

from kvstore_client import _native
from kvstore_client.troubles import TROUBLES, Trouble, TroubleLog

UNREACHABLE = Trouble("unreachable", "")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> TroubleLog:
    caplog.set_level(logging.INFO, "test")
    return TroubleLog(logging.getLogger("test"))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_each_kind_that_the_native_client_tells_has_its_words_and_its_remedy() -> None:
    assert list(TROUBLES) == _native.trouble_kinds()


def test_many_peers_with_one_trouble_are_one_line(log: TroubleLog, caplog: pytest.LogCaptureFixture) -> None:
    log.update({f"segment {number}": UNREACHABLE for number in range(1000)})
    (line,) = lines(caplog)
    assert line.startswith(
        "kvstore: segment 0, segment 1, segment 2, segment 3 and 996 more: nothing listens"
    )
    log.update({})
    assert lines(caplog)[1].startswith(
        "kvstore: segment 0, segment 1, segment 2, segment 3 and 996 more: works again, after "
    )


def test_nothing_new_is_not_said_again(log: TroubleLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(100):
        log.update({"master a:1": UNREACHABLE})
    assert len(lines(caplog)) == 1
    log.update({"master a:1": UNREACHABLE, "master b:1": Trouble("unauthorized", "who are you?")})
    assert lines(caplog)[1] == (
        "kvstore: master b:1: it refuses the token (who are you?): give the secret of this cluster as token_file or token"
    )


def test_what_lasts_is_said_once_however_long_it_lasts(
    log: TroubleLog, caplog: pytest.LogCaptureFixture
) -> None:
    log._log._interval_s = 0.0  # the throttle would let it through again by now
    for _ in range(3):
        log.update({"master a:1": UNREACHABLE})
    assert len(lines(caplog)) == 1


def test_a_peer_that_comes_and_goes_does_not_fill_the_log(
    log: TroubleLog, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        log.update({"master a:1": UNREACHABLE})
        log.update({})
    assert len(lines(caplog)) == 2


def test_the_remedy_names_the_ports_of_masters_for_masters_alone() -> None:
    assert "7440" in str(Trouble.of("master a:7442", "no_answer", ""))
    assert "7440" not in str(Trouble.of("segment a:7450", "no_answer", ""))
    assert "7440" not in str(Trouble.of("master a:7440", "unauthorized", ""))
