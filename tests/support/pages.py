"""Page contents that follow from their key, so that any wrong byte of any page can be told."""

from __future__ import annotations

import random

PAGE_BYTES = 65_536


def content(key: str, size_bytes: int = PAGE_BYTES) -> bytes:
    """The one right content of `key`: pseudo-random bytes seeded by the key."""
    return random.Random(key).randbytes(size_bytes)


def fault(key: str, found: bytes | bytearray | memoryview, size_bytes: int = PAGE_BYTES) -> str:
    """What is wrong with `found` as the content of `key`; empty when every byte is right."""
    right = content(key, size_bytes)
    if bytes(found) == right:
        return ""
    if len(found) != len(right):
        return f"{key}: {len(found)} bytes instead of {len(right)}"
    wrong = [i for i in range(len(right)) if found[i] != right[i]]
    return f"{key}: {len(wrong)} wrong bytes, the first at {wrong[0]}"
