"""The one spelling of an identity (docs/protocol.md section 3): a namespace is named by the hash of its bytes."""

import json
from collections.abc import Mapping
from typing import Any


def canonical_json(values: Mapping[str, Any]) -> bytes:
    """Keys sorted, no white space, UTF-8. ValueError for NaN, infinities and half characters."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()
