"""A segment's memory and journal as a small model: what the native SegmentStore promises, without its threads and clocks.

Sealed objects, evicted oldest first, those of retired namespaces before all; pinned ones never. Each change is a numbered journal entry;
the journal keeps what is not acknowledged, up to a bound, beyond which the oldest are lost and an inventory has to stand for them.
"""

from __future__ import annotations

import asyncio
import bisect
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kvstore_client.protocol.journal import JournalGroup, JournalOp, encode_groups

Key = tuple[bytes, bytes]  # (namespace id, fingerprint)


@dataclass(slots=True)
class Page:
    value: str  # stands for its bytes
    length: int
    seq: int  # of the entry that announced it
    pinned_until: float = 0.0


class ModelPool:
    """JournalSource of the product's pump. `on_due` is called when there may be something to send."""

    def __init__(
        self, pool_id: bytes, capacity_bytes: int, journal_entries_max: int, revision: Callable[[], int]
    ) -> None:
        """`revision`: the store's newest, noted at each acknowledgement."""
        self.pool_id = pool_id
        self.capacity_bytes = capacity_bytes
        self.pages: dict[Key, Page] = {}  # the oldest first
        self.retired: dict[bytes, None] = {}
        self.used_bytes = 0
        self.evicted = 0
        self.acked_seq = 0
        self.overflows = 0
        self.is_supplanted = False
        self._ack_seqs: list[int] = []
        self._ack_revisions: list[int] = []
        self._revision = revision
        self._entries_max = journal_entries_max
        self._kept: deque[tuple[JournalOp, Key, int]] = deque()
        self._first_kept = 1
        self._next_out = 1
        self._inventory: deque[Key] = deque()  # what is left of the one that goes out
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.on_due: Callable[[], None] = lambda: None

    # ---- objects ---------------------------------------------------------------------------------------------

    def put(self, now: float, key: Key, value: str, length: int) -> int | None:
        """The number of its entry (of an older one, when it is there already); None: there is no room, or it is retired."""
        if key[0] in self.retired:
            return None
        if (page := self.pages.get(key)) is not None:
            return page.seq
        if not self._make_room(now, length):
            return None
        self.pages[key] = Page(value, length, self.last_seq + 1)
        self.used_bytes += length
        return self._write(JournalOp.ADD, key, length)

    def get(self, key: Key) -> Page | None:
        return None if key[0] in self.retired else self.pages.get(key)

    def announce(self, key: Key, length: int) -> int:
        """Writes an entry for no object at all, as memory that went bad might."""
        return self._write(JournalOp.ADD, key, length)

    def evict(self, now: float, count: int) -> None:
        for key in self._victims(now)[:count]:
            self._remove(key)

    def _make_room(self, now: float, length: int) -> bool:
        for key in self._victims(now):
            if self.used_bytes + length <= self.capacity_bytes:
                break
            self._remove(key)
        return self.used_bytes + length <= self.capacity_bytes

    def _victims(self, now: float) -> list[Key]:
        retired = [key for key in self.pages if key[0] in self.retired]
        rest = [
            key for key, page in self.pages.items() if key[0] not in self.retired and page.pinned_until <= now
        ]
        return retired + rest

    def _remove(self, key: Key) -> None:
        page = self.pages.pop(key)
        self.used_bytes -= page.length
        self.evicted += 1
        self._write(JournalOp.REMOVE, key, 0)

    # ---- namespaces ------------------------------------------------------------------------------------------

    def namespaces(self) -> list[bytes]:
        return list(dict.fromkeys(ns for ns, _ in self.pages))

    def set_quotas(self, limits: list[tuple[int, list[bytes]]]) -> None:
        assert not limits, "nobody sets any"

    def set_namespaces(self, current: list[bytes], known: list[bytes]) -> None:
        for ns in current:
            self.retired.pop(ns, None)
        for ns in known:
            if ns not in current:
                self.retired[ns] = None

    def retire_namespace(self, ns: bytes) -> None:
        self.retired[ns] = None

    # ---- what waits for durability ---------------------------------------------------------------------------

    async def durable(self, seq: int) -> None:
        """Until everything up to `seq` is acknowledged."""
        if seq > self.acked_seq:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            bisect.insort(self._waiters, (seq, future), key=lambda waiter: waiter[0])
            await future

    def supplanted(self) -> None:
        """Another memory has its id, and the directory has dropped what it held: all of that has to be acknowledged anew."""
        self.is_supplanted = True

    def acked_pages(self) -> list[tuple[Key, int]]:
        """(key, revision of the store by which it was durable) of all that is held, acknowledged and current."""
        if self.is_supplanted:
            return []
        marks = self._ack_seqs
        return [
            (key, self._ack_revisions[bisect.bisect_left(marks, page.seq)])
            for key, page in self.pages.items()
            if page.seq <= self.acked_seq and key[0] not in self.retired
        ]

    @property
    def waiting(self) -> int:
        return sum(not future.done() for _, future in self._waiters)

    # ---- JournalSource ---------------------------------------------------------------------------------------

    @property
    def last_seq(self) -> int:
        return self._first_kept + len(self._kept) - 1

    @property
    def oldest_kept_seq(self) -> int:
        return self._first_kept

    def _write(self, op: JournalOp, key: Key, length: int) -> int:
        self._kept.append((op, key, length))
        while len(self._kept) > self._entries_max:
            self._kept.popleft()
            self._first_kept += 1
            self.overflows += 1
        self._next_out = max(self._next_out, self._first_kept)
        self.on_due()
        return self.last_seq

    def journal_drain(self, entries_max: int) -> tuple[int, int, bytes] | None:
        count = min(entries_max, self.last_seq + 1 - self._next_out)
        if count <= 0:
            return None
        first = self._next_out
        start = first - self._first_kept
        self._next_out += count
        entries = [self._kept[start + i] for i in range(count)]
        return first, first + count - 1, _groups(entries)

    def journal_ack(self, seq: int) -> None:
        if seq > self.last_seq:
            raise AssertionError(f"entry {seq} is acknowledged, and only {self.last_seq} was written")
        if self.is_supplanted and seq >= self.acked_seq:
            self.is_supplanted = False
            self._ack_seqs, self._ack_revisions = [seq], [self._revision()]
        if seq <= self.acked_seq:
            return
        self.acked_seq = seq
        self._ack_seqs.append(seq)
        self._ack_revisions.append(self._revision())
        while self._kept and self._first_kept <= seq:
            self._kept.popleft()
            self._first_kept += 1
        self._next_out = max(self._next_out, self._first_kept)
        while self._waiters and self._waiters[0][0] <= seq:
            _, future = self._waiters.pop(0)
            if not future.done():
                future.set_result(None)

    def journal_rewind(self, seq: int) -> bool:
        if seq + 1 < self._first_kept or seq > self.last_seq:
            return False
        self._next_out = seq + 1
        return True

    def begin_inventory(self) -> int:
        self._next_out = self.last_seq + 1
        self._inventory = deque(self.pages)
        return self.last_seq

    def next_inventory_slice(self, entries_max: int) -> tuple[bytes, bool]:
        """What has gone since it began is left out: its REMOVE comes after it. So is what has come since."""
        entries: list[tuple[JournalOp, Key, int]] = []
        while self._inventory and len(entries) < entries_max:
            key = self._inventory.popleft()
            if key in self.pages and key[0] not in self.retired:
                entries.append((JournalOp.ADD, key, self.pages[key].length))
        return _groups(entries), not self._inventory

    def forget_journal(self) -> None:
        """The process begins anew over the same memory: what was not acknowledged is no longer kept."""
        self._first_kept = self._next_out = self.last_seq + 1
        self._kept.clear()
        self._waiters.clear()


def _groups(entries: list[tuple[JournalOp, Key, int]]) -> bytes:
    groups: list[tuple[JournalOp, bytes, list[bytes], list[int]]] = []
    for op, (ns, fingerprint), length in entries:
        if not groups or groups[-1][:2] != (op, ns):
            groups.append((op, ns, [], []))
        groups[-1][2].append(fingerprint)
        groups[-1][3].append(length)
    return encode_groups(
        JournalGroup(op, ns, b"".join(fingerprints), tuple(lengths))
        for op, ns, fingerprints, lengths in groups
    )
