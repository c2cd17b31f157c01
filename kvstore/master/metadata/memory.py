"""`memory:` - a store that forgets everything with the process. For tests and simulations only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from kvstore.common.errors import FencedError, StoreError
from kvstore.master.metadata.store import (
    SCAN_PAGE_BYTES,
    DeleteRange,
    Fence,
    MetadataStore,
    Op,
    Put,
    checked_ops,
)


class MemoryStore(MetadataStore):
    def __init__(self) -> None:
        self._items: dict[bytes, bytes] = {}
        self._term = 0
        self._open = False

    async def open(self) -> None:
        self._open = True

    async def acquire(self) -> Fence:
        self._check_open()
        self._term += 1
        return Fence(self._term)

    async def commit(self, ops: Sequence[Op], fence: Fence) -> None:
        self._check_open()
        checked = checked_ops(ops)
        if fence.term != self._term:
            raise FencedError(f"term {fence.term} has ended, term {self._term} writes now")
        for op in checked:
            if isinstance(op, Put):
                self._items[op.key] = op.value
            elif isinstance(op, DeleteRange):
                for key in [key for key in self._items if op.start <= key < op.end]:
                    del self._items[key]
            else:
                self._items.pop(op.key, None)

    async def get(self, key: bytes) -> bytes | None:
        self._check_open()
        return self._items.get(key)

    async def scan(self, prefix: bytes) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        self._check_open()
        if not prefix:
            raise StoreError("a scan needs a prefix")
        page: list[tuple[bytes, bytes]] = []
        size = 0
        for key in sorted(key for key in self._items if key.startswith(prefix)):
            if (value := self._items.get(key)) is None:
                continue
            page.append((key, value))
            size += len(key) + len(value)
            if size >= SCAN_PAGE_BYTES:
                yield page
                page, size = [], 0
        if page:
            yield page

    async def size_bytes(self) -> int:
        return sum(len(key) + len(value) for key, value in self._items.items())

    async def close(self) -> None:
        self._open = False

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError("the metadata store is not open")


def open_uri(uri: str) -> MetadataStore:
    return MemoryStore()
