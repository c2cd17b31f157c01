"""Secrets and what they may do."""

from __future__ import annotations

import pytest

from kvstore_client.tokens import ALL_ROLES, TOKENS_MAX, TokenRole, Tokens

NOTHING: frozenset[TokenRole] = frozenset()


@pytest.mark.parametrize("text", ["secret", "  secret\n", "se:cret", "engineer:x", "# ours\nsecret\n"])
def test_one_line_is_one_secret_with_all_rights(text: str) -> None:
    tokens = Tokens.parse(text)
    secret = text.split("\n")[1] if text.startswith("#") else text.strip()
    assert tokens.roles_of(secret) == ALL_ROLES
    assert tokens.roles_of(secret + "x") == tokens.roles_of("") == NOTHING
    assert {tokens.to_present(role) for role in TokenRole} == {secret}


def test_without_a_token_nobody_is_asked_for_one_and_who_presents_one_is_wrong_here() -> None:
    tokens = Tokens.parse("\n")
    assert not tokens
    assert tokens.roles_of("") == ALL_ROLES
    assert tokens.roles_of("secret") == NOTHING
    assert tokens.to_present(TokenRole.SEGMENT) == ""


def test_lines_with_roles_give_each_secret_its_own_rights() -> None:
    tokens = Tokens.parse("# made on monday\nengine:e1\n\nengine:e2\nsegment:s\nadmin:a:b\nsegment:a:b\n")
    assert tokens.roles_of("e1") == tokens.roles_of("e2") == {TokenRole.ENGINE}
    assert tokens.roles_of("s") == {TokenRole.SEGMENT}
    assert tokens.roles_of("a:b") == {TokenRole.SEGMENT, TokenRole.ADMIN}
    assert tokens.roles_of("engine:e1") == tokens.roles_of("") == tokens.roles_of("é") == NOTHING
    assert [tokens.to_present(role) for role in TokenRole] == ["e1", "s", "a:b"]


def test_a_role_that_nobody_has_is_never_granted() -> None:
    tokens = Tokens.parse("engine:e\n")
    assert tokens.to_present(TokenRole.ADMIN) == ""
    assert tokens.roles_of("") == NOTHING


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("engine:e\nsecret", "line 2: of several tokens each has a role, one of engine, segment, admin"),
        ("engine:e\nroot:secret", "line 2: of several tokens each has a role"),
        ("engine:e\nsegment:", "line 2: a role and no token"),
        ("engine:e\nsegment:two words", "line 2: a token consists of visible ASCII"),
        ("two words", "a token consists of visible ASCII"),
        ("x" * 1025, "at most 1024 bytes"),
        ("engine:e\n" * (TOKENS_MAX + 1), f"at most {TOKENS_MAX}"),
    ],
)
def test_what_is_wrong_is_named_and_no_secret_is(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        Tokens.parse(text)
    for secret in ("secret", "two words", "xxxx"):
        assert secret not in str(raised.value)
