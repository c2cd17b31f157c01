"""A segment's journal and a master's directory as small models, to check the pump against."""

from __future__ import annotations

import json
from collections import deque

ADD, REMOVE = "add", "remove"


class ModelJournal:
    """Objects and a bounded journal of their changes; the semantics of SegmentStore's journal."""

    def __init__(self, entries_max: int = 10**9) -> None:
        self.objects: set[int] = set()
        self.acked_seq = 0
        self._entries_max = entries_max
        self._kept: deque[tuple[str, int]] = deque()
        self._first_kept = 1
        self._next_out = 1
        self._listed_from = 0  # the next key of an inventory

    @property
    def last_seq(self) -> int:
        return self._first_kept + len(self._kept) - 1

    def change(self, key: int) -> None:
        """Puts `key` if it is absent, removes it if it is there."""
        operation = REMOVE if key in self.objects else ADD
        self.objects ^= {key}
        self._kept.append((operation, key))
        while len(self._kept) > self._entries_max:
            self._kept.popleft()
            self._first_kept += 1
        self._next_out = max(self._next_out, self._first_kept)

    def journal_drain(self, entries_max: int) -> tuple[int, int, bytes] | None:
        count = min(entries_max, self.last_seq + 1 - self._next_out)
        if count <= 0:
            return None
        start = self._next_out - self._first_kept
        entries = [self._kept[start + i] for i in range(count)]
        first = self._next_out
        self._next_out += count
        return first, first + count - 1, json.dumps(entries).encode()

    def journal_ack(self, seq: int) -> None:
        assert seq <= self.last_seq, f"ack of {seq}, which was never written (last {self.last_seq})"
        self.acked_seq = max(self.acked_seq, seq)
        while self._kept and self._first_kept <= seq:
            self._kept.popleft()
            self._first_kept += 1
        self._first_kept = max(self._first_kept, seq + 1)
        self._next_out = max(self._next_out, seq + 1)

    def journal_rewind(self, seq: int) -> bool:
        if seq + 1 < self._first_kept or seq > self.last_seq:
            return False
        self._next_out = seq + 1
        return True

    def begin_inventory(self) -> int:
        self._next_out = self.last_seq + 1
        self._listed_from = 0
        return self.last_seq

    def next_inventory_slice(self, entries_max: int) -> tuple[bytes, bool]:
        """Of what is there now: between two slices the objects change, as those of a segment do."""
        keys = sorted(key for key in self.objects if key >= self._listed_from)
        part = keys[:entries_max]
        done = len(part) == len(keys)
        self._listed_from = part[-1] + 1 if part else self._listed_from
        return (json.dumps([(ADD, key) for key in part]).encode() if part else b""), done


class ModelDirectory:
    """What a master holds of one segment. It insists on a journal without holes, as the real one must."""

    def __init__(self) -> None:
        self.objects: set[int] = set()
        self.durable_seq = 0
        self._inventory: set[int] | None = None

    def journal(self, first_seq: int, last_seq: int, groups: bytes) -> None:
        assert first_seq == self.durable_seq + 1, f"a hole: {first_seq} after {self.durable_seq}"
        entries = json.loads(groups)
        assert last_seq - first_seq + 1 == len(entries)
        self._apply(self.objects, entries)
        self.durable_seq = last_seq

    def inventory(self, last_seq: int, groups: bytes, first: bool, last: bool) -> None:
        if first:
            self._inventory = set()
        assert self._inventory is not None, "an inventory began in its middle"
        self._apply(self._inventory, json.loads(groups) if groups else [])
        if last:
            self.objects, self._inventory = self._inventory, None
            self.durable_seq = last_seq

    @staticmethod
    def _apply(objects: set[int], entries: list[list[object]]) -> None:
        for operation, key in entries:
            assert isinstance(key, int)
            if operation == ADD:
                objects.add(key)
            else:
                objects.discard(key)
