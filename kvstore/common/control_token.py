"""The shared secret on the gRPC control port: `authorization: Bearer TOKEN` in the metadata of every call."""

from __future__ import annotations

from collections.abc import Iterable

AUTHORIZATION = "authorization"
_SCHEME = "Bearer "


def check_token(token: str) -> None:
    """ValueError for what gRPC can't carry as it is: metadata holds visible ASCII, and trims blanks."""
    if not all("!" <= character <= "~" for character in token):
        raise ValueError(
            "a token consists of visible ASCII characters without blanks; `openssl rand -hex 32` makes one"
        )


def token_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """What a caller sends along; nothing without a token."""
    return ((AUTHORIZATION, _SCHEME + token),) if token else ()


def presented_token(metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    """What a call carries: "" for nothing, None for credentials of another kind, or of more than one."""
    values = [value for key, value in metadata or () if key == AUTHORIZATION]
    if not values:
        return ""
    value = values[0]
    if len(values) > 1 or not isinstance(value, str) or not value.startswith(_SCHEME):
        return None
    return value[len(_SCHEME) :]
