"""What a segment sends to its master, and when: the pump is native (native/segment/journal_pump.hpp), and so is what drives it in
a segment (JournalLink). Tests and simulations drive it from Python, against models of a journal that are a `JournalSource`.
"""

from __future__ import annotations

from typing import Protocol

from kvstore_client._native import (
    InventoryChunk as Chunk,
)
from kvstore_client._native import (
    JournalBatch as Batch,
)
from kvstore_client._native import (
    JournalProtocolError,
    JournalPump,
    PumpState,
)

__all__ = ["Batch", "Chunk", "JournalProtocolError", "JournalPump", "JournalSource", "PumpState"]


class JournalSource(Protocol):
    """What the pump takes from, where that is no SegmentStore. What it raises comes out of the pump's call."""

    @property
    def last_seq(self) -> int: ...

    def journal_drain(self, entries_max: int) -> tuple[int, int, bytes] | None:
        """(first_seq, last_seq, groups) of the next entries not handed out yet, or None."""

    def journal_ack(self, seq: int) -> None:
        """Everything up to `seq` is durable."""

    def journal_rewind(self, seq: int) -> bool:
        """Hand out again from `seq` + 1. False when that is no longer kept."""

    def begin_inventory(self) -> int:
        """Begins one, in place of one that was not finished. The number that it stands for: entries up to it count as handed
        out."""

    def next_inventory_slice(self, entries_max: int) -> tuple[bytes, bool]:
        """(groups, whether nothing is left) of the next of it, at most `entries_max` entries."""
