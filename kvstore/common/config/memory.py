"""What a setting of a pool's memory may say."""

from __future__ import annotations

import os

NODE_MAX = 1023


def check_pool_path(text: str) -> str:
    """The text: auto, off, or an absolute path. ValueError for another."""
    if text not in ("auto", "off") and not os.path.isabs(text):
        raise ValueError(
            f"a pool is at an absolute path, as /dev/shm/pages, or 'auto' or 'off', not {text!r}"
        )
    return text


def parse_nodes(text: str) -> list[int]:
    """The NUMA nodes of `0,1`; none of an empty text. ValueError for another."""
    try:
        nodes = [int(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        raise ValueError(f"NUMA nodes are numbers, separated by commas, as 0,1, not {text!r}") from None
    if any(not 0 <= node <= NODE_MAX for node in nodes):
        raise ValueError(f"NUMA nodes are numbers from 0 to {NODE_MAX}, not {text!r}")
    return nodes
