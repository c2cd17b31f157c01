"""The token on the control port: what it may be, and how a call carries it."""

from __future__ import annotations

import pytest

from kvstore.common.config.master import MasterSettings
from kvstore.common.control_metadata import presented_token, token_metadata
from kvstore_client.tokens import check_token


def test_what_a_caller_sends_is_what_the_master_reads() -> None:
    for token in ("", "hunter2", "!~" * 512):
        check_token(token)
        assert presented_token(token_metadata(token)) == token


@pytest.mark.parametrize("token", ["two words", "tab\tbed", "schlüssel", "\x7f"])
def test_a_token_that_metadata_cannot_carry_is_refused_at_the_start(token: str) -> None:
    with pytest.raises(ValueError, match="visible ASCII"):
        MasterSettings(token=token)


@pytest.mark.parametrize(
    "metadata",
    [
        [("authorization", "Basic aHVudGVyMg==")],
        [("authorization", "hunter2")],
        [("authorization", b"Bearer hunter2")],
        [("authorization", "Bearer hunter2"), ("authorization", "Bearer hunter2")],
    ],
)
def test_credentials_of_another_kind_are_none(metadata: list[tuple[str, str | bytes]]) -> None:
    assert presented_token(metadata) is None


def test_other_metadata_is_no_token() -> None:
    assert presented_token([("user-agent", "grpc"), ("x-token", "Bearer hunter2")]) == ""
    assert presented_token(None) == ""
