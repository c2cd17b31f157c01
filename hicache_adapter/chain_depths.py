"""Where pages stand in their prefix chains: the store evicts tails before the heads that they hang on."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

KEYS_MAX = 65_536
"""Of queries that are remembered, all together."""


class ChainDepths:
    """SGLang names the keys before a batch where `hicache_storage_pass_prefix_keys` is set. Where it is not, a query
    for a prompt tells how its pages follow each other; its later batches are found in there. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: deque[_Query] = deque()
        self._keys = 0

    def asked(self, keys: Sequence[str], extra_info: Any) -> None:
        """A query for the pages of a prompt, from the first that the engine lacks on."""
        if not 1 < len(keys) <= KEYS_MAX or _prefix_keys(extra_info) is not None:
            return
        with self._lock:
            self._queries.append(_Query(keys))
            self._keys += len(keys)
            while self._keys > KEYS_MAX:
                self._keys -= len(self._queries.popleft().keys)

    def of(self, keys: Sequence[str], extra_info: Any) -> int:
        """Position of the batch's first page in its chain, as far as it is known; else 0."""
        before = _prefix_keys(extra_info)
        if before is not None:
            return len(before)
        if not keys:
            return 0
        with self._lock:
            for query in reversed(self._queries):
                depth = query.position(keys[0])
                if depth is not None:
                    return depth
        return 0


class _Query:
    """One question; its index is made when a batch is looked for, which most queries never see."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys
        self._positions: dict[str, int] | None = None

    def position(self, key: Any) -> int | None:
        if self._positions is None:
            try:
                self._positions = {each: at for at, each in enumerate(self.keys)}
            except TypeError:  # what is no key has no place
                self._positions = {}
        return self._positions.get(key) if isinstance(key, str) else None


def _prefix_keys(extra_info: Any) -> list[Any] | None:
    """The keys before a batch, where SGLang passes them (0.5.9 and older pass a tuple that says nothing)."""
    prefix_keys = getattr(extra_info, "prefix_keys", None)
    return prefix_keys if isinstance(prefix_keys, list) else None
