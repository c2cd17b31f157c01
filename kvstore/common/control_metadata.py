"""What travels in the metadata of calls on the gRPC control port.

With every call the shared secret, as `authorization: Bearer TOKEN`. With a refusal the role of the master that refused:
a standby is worth asking again soon; the refusal of a leader is final, although the
network's own failures have the same code.
"""

from __future__ import annotations

from collections.abc import Iterable

ROLE_KEY = "kvstore-role"
STANDBY_ROLE = "standby"
LEADER_ROLE = "leader"
AUTHORIZATION = "authorization"
_SCHEME = "Bearer "


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


def refusing_role(trailing_metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Of the master that ended a call; empty when none says so."""
    return next((str(value) for key, value in trailing_metadata or () if key == ROLE_KEY), "")
