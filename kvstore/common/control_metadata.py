"""What travels in the metadata of calls on the gRPC control port.

With every call the shared secret, as `authorization: Bearer TOKEN`. With a refusal the role of the master that refused:
a standby is worth asking again soon; the refusal of a leader is final, although the
network's own failures have the same code. With the refusal of a segment whose pages belong to another cluster the id of the
master's own, in hex.
"""

from __future__ import annotations

from collections.abc import Iterable

ROLE_KEY = "kvstore-role"
STANDBY_ROLE = "standby"
LEADER_ROLE = "leader"
CLUSTER_KEY = "kvstore-cluster"
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
    return _value_of(ROLE_KEY, trailing_metadata)


def refusing_cluster(trailing_metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Id of the cluster whose master refused a segment of another one; empty when that is not why."""
    return _value_of(CLUSTER_KEY, trailing_metadata)


def _value_of(wanted: str, metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    return next((str(value) for key, value in metadata or () if key == wanted), "")
