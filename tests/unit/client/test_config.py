"""Settings are checked before anything is connected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_client import ConfigError
from kvstore_client.config import ClientConfig, clamp_deadline_ms, parse_masters


@pytest.mark.parametrize(
    ("masters", "expected"),
    [
        ("a:1", (("a", 1),)),
        (" a:1 , b:65535,", (("a", 1), ("b", 65535))),
        ("[::1]:7440", (("::1", 7440),)),
        (["a:1", "b:2"], (("a", 1), ("b", 2))),
        ([("a", 1)], (("a", 1),)),
        ("a", (("a", 7440),)),
    ],
)
def test_masters_are_read_from_texts_lists_and_pairs(masters: object, expected: object) -> None:
    assert parse_masters(masters) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "masters",
    [
        "",
        ",",
        "a:",
        ":1",
        "a:0",
        "a:65536",
        "a:x",
        "::1:7440",
        "a b:1",
        "http://a:7440",
        "0.0.0.0:7440",
        [("::", 7440)],
        [],
        [("a", "1")],
        [("a",)],
        None,
        7,
        "a:1," * 65,
    ],
)
def test_bad_masters_are_refused_naming_the_option(masters: object) -> None:
    with pytest.raises(ConfigError, match=r"^masters: ") as caught:
        parse_masters(masters)  # type: ignore[arg-type]
    assert caught.value.option == "masters"


def test_switching_every_transport_off_is_refused() -> None:
    with pytest.raises(ConfigError, match="no transport is left"):
        ClientConfig.of("a:1", same_host=False, tcp=False)


@given(st.one_of(st.none(), st.floats(), st.integers(), st.text()))
def test_any_deadline_becomes_a_bounded_number_of_milliseconds(value: object) -> None:
    clamped = clamp_deadline_ms(value, 1000)  # type: ignore[arg-type]
    assert isinstance(clamped, int)
    assert 0 <= clamped <= 600_000
