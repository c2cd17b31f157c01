"""The secrets of a store and what each of them may do.

One line is one secret with all rights. Several lines are `role:secret` each, so that what an engine holds can read, write
and clear pages, and neither register segments nor drain or look around:

    engine:1f0c...
    segment:77ab...
    admin:c02d...
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from enum import Enum

from kvstore_client.protocol import TOKEN_BYTES_MAX

TOKENS_MAX = 64
# Of all of them, as text.
TOKENS_BYTES_MAX = 128 << 10


def read_secret(path: str) -> str:
    """What a token file holds, which servers and clients share. ValueError names it."""
    try:
        with open(path, encoding="utf-8") as file:
            secret = file.read(TOKENS_BYTES_MAX + 1).strip()
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} can't be read: {getattr(error, 'strerror', None) or error}") from error
    if not secret:
        raise ValueError(f"{path} is empty: write the secret into it")
    return secret


def engine_secret(path: str) -> str:
    """What a client presents of a token file: its first line for engines, or the one secret. ValueError names the file."""
    text = read_secret(path)
    try:
        secret = Tokens.parse(text).to_present(TokenRole.ENGINE)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not secret:
        raise ValueError(
            f"{path} has no line for the role engine, which a client presents: add engine:SECRET"
        )
    return secret


def check_token(token: str) -> None:
    """ValueError for what gRPC can't carry as it is: metadata holds visible ASCII, and trims blanks."""
    if not all("!" <= character <= "~" for character in token):
        raise ValueError(
            "a token consists of visible ASCII characters without blanks; `openssl rand -hex 32` makes one"
        )


class TokenRole(Enum):
    """What a token is for."""

    ENGINE = "engine"  # read, write and clear pages
    SEGMENT = "segment"  # hold pages: register, journal, heartbeat
    ADMIN = "admin"  # look around, clear, drain


ALL_ROLES = frozenset(TokenRole)
_ROLE_NAMES = ", ".join(role.value for role in TokenRole)


class Tokens:
    """Parsed once; empty: nobody is asked for a token."""

    def __init__(self, granted: Iterable[tuple[TokenRole | None, str]]) -> None:
        """(role, secret) pairs in order of preference; None: all roles."""
        self._granted = tuple(granted)

    @staticmethod
    def parse(text: str) -> Tokens:
        """Of the content of a token file or setting. ValueError names the line and what is wrong with it, never the secret."""
        lines = [line.strip() for line in text.splitlines()]
        numbered = [(i, line) for i, line in enumerate(lines, 1) if line and not line.startswith("#")]
        if len(numbered) > TOKENS_MAX:
            raise ValueError(f"{len(numbered)} tokens, at most {TOKENS_MAX} are taken")
        granted: list[tuple[TokenRole | None, str]] = []
        for number, line in numbered:
            name, colon, secret = line.partition(":")
            role = next((role for role in TokenRole if colon and role.value == name), None)
            if role is None:
                secret = line
            try:
                if role is None and len(numbered) > 1:
                    raise ValueError(f"of several tokens each has a role, one of {_ROLE_NAMES}: role:token")
                if not secret:
                    raise ValueError("a role and no token")
                check_token(secret)
                if len(secret) > TOKEN_BYTES_MAX:
                    raise ValueError(f"a token has at most {TOKEN_BYTES_MAX} bytes")
            except ValueError as error:
                raise ValueError(f"line {number}: {error}" if len(lines) > 1 else str(error)) from None
            granted.append((role, secret))
        return Tokens(granted)

    def __bool__(self) -> bool:
        return bool(self._granted)

    def roles_of(self, presented: str) -> frozenset[TokenRole]:
        """What the bearer may do; empty: it is none of these tokens. Takes the same time whichever it is."""
        if not self._granted:
            return ALL_ROLES if not presented else frozenset()
        roles: set[TokenRole] = set()
        for role, secret in self._granted:
            if hmac.compare_digest(secret.encode(), presented.encode()):
                roles |= ALL_ROLES if role is None else {role}
        return frozenset(roles)

    def to_present(self, role: TokenRole) -> str:
        """The secret that shows others that we may do this; empty: there is none."""
        return next(iter(self.accepted(role)), "")

    def accepted(self, role: TokenRole) -> list[str]:
        """The secrets that may do this, in order of preference: several while one takes another's place."""
        return [secret for granted, secret in self._granted if granted in (role, None)]


def refusal_text(needed: TokenRole, held: frozenset[TokenRole]) -> str:
    """Why a token that is known does not do."""
    names = ", ".join(sorted(role.value for role in held))
    return f"this token is for: {names}; what you ask for takes one with the role {needed.value}"
