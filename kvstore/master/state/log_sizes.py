"""How many entries each record of a log holds, so that the total stays right when a compaction rewrites it.

Compact, for there may be a hundred thousand records: two numbers each.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right


class LogSizes:
    def __init__(self) -> None:
        self._chunks: dict[int, int] = {}
        self._first_seqs = array("Q")
        self._entries = array("L")
        self.total = 0

    def chunk(self, chunk: int, entries: int) -> None:
        """A chunk of the snapshot was written, or written again."""
        self.total += entries - self._chunks.get(chunk, 0)
        self._chunks[chunk] = entries

    def journal(self, first_seq: int, last_seq: int, entries: int) -> None:
        """A record was written; it stands for those that began between these entries."""
        start = bisect_left(self._first_seqs, first_seq)
        end = bisect_right(self._first_seqs, last_seq, start)
        self.total += entries - sum(self._entries[start:end])
        self._first_seqs[start:end] = array("Q", (first_seq,))
        self._entries[start:end] = array("L", (entries,))
