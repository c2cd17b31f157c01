"""A replicated store in memory: commits make revisions that can be read and followed; elections and delays are the test's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from kvstore.common.errors import StoreError
from kvstore.master.metadata.memory import MemoryStore
from kvstore.master.metadata.replicated import ReplicatedStore, StoreReader, Tenure
from kvstore.master.metadata.replicated import Update as StoreUpdate
from kvstore.master.metadata.store import Fence, KeyUpdate, Op


class MemoryReplicatedStore(MemoryStore, ReplicatedStore):
    """`elect()` makes the candidate the leader; between `hold_updates()` and `release_updates()` followers get none."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[dict[bytes, bytes]] = [{}]  # what there was at each revision
        self.failing_reads = 0  # so many scans at a revision are still to fail
        self._held = False
        self._elected = asyncio.Event()
        self._changed = asyncio.Event()
        self._tenure: Tenure | None = None

    @property
    def revision(self) -> int:
        return len(self.history) - 1

    async def commit(self, ops: Sequence[Op], fence: Fence) -> None:
        await super().commit(ops, fence)
        self.history.append(dict(self._items))
        self._wake()

    def hold_updates(self) -> None:
        self._held = True

    def release_updates(self) -> None:
        self._held = False
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def elect(self) -> None:
        self._elected.set()

    def end_tenure(self) -> None:
        """The leader is one no more, and is not elected again."""
        assert self._tenure is not None
        self._elected.clear()
        self._tenure.end("its lease is over")

    async def campaign(self) -> Tenure:
        await self._elected.wait()
        self._tenure = Tenure(await self.acquire(), self.revision)
        return self._tenure

    def announce(self, address: str) -> None:
        return

    async def resign(self) -> None:
        return

    async def leader_address(self) -> str | None:
        return None

    async def revisions(self) -> tuple[int, int]:
        return self.revision, self.revision

    def at(self, revision: int) -> StoreReader:
        return _AtRevision(self, self.history[revision])

    async def follow(self, revision: int) -> AsyncIterator[StoreUpdate]:
        while True:
            while revision >= self.revision or self._held:
                # The event of now: one that comes before the wait begins is not missed.
                await asyncio.wait_for(self._changed.wait(), 30)
            revision += 1
            old, new = self.history[revision - 1], self.history[revision]
            changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
            yield StoreUpdate(revision, tuple(KeyUpdate(key, new.get(key)) for key in changed))


class _AtRevision:
    def __init__(self, store: MemoryReplicatedStore, items: dict[bytes, bytes]) -> None:
        self._store = store
        self._items = items

    async def get(self, key: bytes) -> bytes | None:
        return self._items.get(key)

    async def scan(self, prefix: bytes) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        if not prefix:
            raise StoreError("a scan needs a prefix")
        records = [(key, value) for key, value in sorted(self._items.items()) if key.startswith(prefix)]
        for page in (records[:1], records[1:]):
            if page:
                yield page
            if self._store.failing_reads > 0:
                self._store.failing_reads -= 1
                raise StoreError("no answer in the middle of it")
