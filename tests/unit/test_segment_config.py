from __future__ import annotations

import pytest
from pydantic import ValidationError

from kvstore.segment.config import SegmentSettings


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSTORE_SEGMENT_MASTERS", "a:1, b:2")
    monkeypatch.setenv("KVSTORE_SEGMENT_CAPACITY", "2GiB")
    monkeypatch.setenv("KVSTORE_SEGMENT_PORT", "0")
    settings = SegmentSettings()
    assert settings.masters == ("a:1", "b:2")
    assert (settings.capacity, settings.port) == ("2GiB", 0)


def test_what_is_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSTORE_SEGMENT_CAPACITY", "2GiB")
    assert SegmentSettings(capacity="4GiB").capacity == "4GiB"


def test_masters_without_a_port_are_at_the_control_port_and_ipv6_keeps_its_brackets() -> None:
    settings = SegmentSettings(masters="m-0, [::1]:7,m-0:7441", host="[::1]")  # type: ignore[arg-type]
    assert settings.masters == ("m-0:7441", "[::1]:7")
    assert settings.host == "::1"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"masters": ""}, "needs 1..64 addresses"),
        ({"masters": "::1:7441"}, r"in brackets, as \[::1\]:7441"),
        ({"masters": "http://a:7441/"}, "write 'a:7441'"),
        ({"masters": "0.0.0.0:7441"}, "listens on, not where it is reached"),
        ({"masters": "a:0"}, "a port is a number in 1..65535"),
        ({"masters": "a:70000"}, "a port is a number in 1..65535"),
        ({"host": "a:7450"}, "the port has an option of its own"),
        ({"advertise_host": "0.0.0.0"}, "listens on, not where it is reached"),
        ({"capacity": "many"}, "not a size"),
        ({"capacity": "1"}, "smallest pool is 1.0 MiB"),
        ({"port": "70000"}, "65535"),
        ({"high_watermark": "0.5", "low_watermark": "0.6"}, "must not exceed"),
        ({"token": "x" * 1025}, "at most 1024"),
        ({"log_level": "loud"}, "should match pattern"),
        ({"no_such_setting": "1"}, "Extra inputs"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_is_right(values: dict[str, str], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        SegmentSettings(**values)  # type: ignore[arg-type]
