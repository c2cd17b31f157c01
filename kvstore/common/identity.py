"""Identities of namespaces: canonical JSON, and what is derived from it (docs/protocol.md section 3)."""

from __future__ import annotations

import hashlib
import json

from kvstore.common.errors import RefusedError
from kvstore_client._native import namespace_id
from kvstore_client.protocol import IDENTITY_BYTES_MAX, Status, canonical_json

__all__ = ["canonical_json", "check_identity", "identity_hash", "namespace_id"]


def check_identity(identity: bytes) -> None:
    """Raises RefusedError unless the identity is a canonical JSON object: two spellings of one identity
    would be two namespaces."""
    if len(identity) > IDENTITY_BYTES_MAX:
        raise RefusedError(
            Status.TOO_LARGE, f"identity of {len(identity)} bytes is over {IDENTITY_BYTES_MAX}"
        )
    try:
        value = json.loads(identity.decode())
        canonical = canonical_json(value) if isinstance(value, dict) else None
    except (ValueError, RecursionError) as error:
        raise RefusedError(Status.BAD_REQUEST, f"identity is not JSON in UTF-8: {error}") from None
    if canonical is None:
        raise RefusedError(Status.BAD_REQUEST, "identity must be a JSON object")
    if canonical != identity:
        raise RefusedError(
            Status.BAD_REQUEST,
            "identity is not canonical JSON (sorted keys, no white space, UTF-8, no duplicate keys): "
            f"expected {canonical[:200].decode(errors='replace')}",
        )


def identity_hash(identity: bytes) -> bytes:
    return hashlib.sha256(identity).digest()
