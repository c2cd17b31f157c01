"""What a segment sends to its master, and when: the attach/journal protocol without its IO.

    detached --attached(durable_seq)--> streaming --detached()--> detached
                  |                        ^   |
                  | the master is behind   |   | a gap: the journal lost entries
                  v                        |   v
              inventory ------------------- inventory

The journal is the segment's only way to write into the directory, so the pump keeps two promises: entries go
out in order without a hole (a hole is mended by an inventory), and at most `batches_in_flight_max` batches
wait for an ack, so that a slow master costs bounded memory here and there.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import Protocol


class JournalSource(Protocol):
    """The part of SegmentStore that the pump uses (contract: client/kvstore_client/_native.pyi)."""

    @property
    def last_seq(self) -> int: ...

    def journal_drain(self, entries_max: int) -> tuple[int, int, bytes] | None: ...

    def journal_ack(self, seq: int) -> None: ...

    def journal_rewind(self, seq: int) -> bool: ...

    def inventory(self, entries_max: int) -> tuple[int, list[bytes]]: ...


class PumpState(enum.Enum):
    """Where the conversation with the master stands."""

    DETACHED = "detached"
    INVENTORY = "inventory"
    STREAMING = "streaming"


@dataclass(frozen=True)
class Batch:
    """Journal entries `first_seq` to `last_seq`, as groups of docs/protocol.md section 8."""

    first_seq: int
    last_seq: int
    groups: bytes


@dataclass(frozen=True)
class Chunk:
    """A part of the segment's whole content, which stands for every entry up to `last_seq`."""

    last_seq: int
    groups: bytes
    first: bool
    last: bool


class JournalProtocolError(Exception):
    """The master said something that can't be: the stream must be torn down and begun again."""


class JournalPump:
    """Decides the next message of one attached stream. Not thread-safe; one event loop drives it."""

    def __init__(
        self, source: JournalSource, *, batch_entries_max: int = 16_384, batches_in_flight_max: int = 4
    ) -> None:
        """Batches hold at most `batch_entries_max` entries (20 bytes each); so many of them wait for an ack
        at most.
        """
        if batch_entries_max < 1 or batches_in_flight_max < 1:
            raise ValueError("batch_entries_max and batches_in_flight_max are at least 1")
        self._source = source
        self._batch_entries_max = batch_entries_max
        self._batches_in_flight_max = batches_in_flight_max
        self._state = PumpState.DETACHED
        self._chunks: deque[Chunk] = deque()
        self._unacked: deque[int] = deque()  # last_seq of each batch, and of an inventory, on its way
        self._sent_seq = 0
        self._durable_seq = 0
        self.inventories_sent = 0
        self.gaps = 0
        self.entries_refused = 0  # that a master has left out, because they say what can't be

    @property
    def state(self) -> PumpState:
        return self._state

    @property
    def sent_seq(self) -> int:
        """The last entry handed out on this stream."""
        return self._sent_seq

    @property
    def durable_seq(self) -> int:
        """The last entry that a master has confirmed on this stream."""
        return self._durable_seq

    @property
    def window_full(self) -> bool:
        """True while next_message must wait for an ack, however much there is to send."""
        return len(self._unacked) >= self._batches_in_flight_max

    def attached(self, durable_seq: int, need_inventory: bool) -> None:
        """A master has taken us in and holds our entries up to `durable_seq`."""
        self.detached()
        # A master ahead of us knows another life of this pool: only the whole content can put that right.
        ahead = durable_seq > self._source.last_seq
        self._durable_seq = self._sent_seq = 0 if ahead else durable_seq
        if need_inventory or ahead or not self._source.journal_rewind(durable_seq):
            self._begin_inventory()
            return
        self._state = PumpState.STREAMING
        self._source.journal_ack(durable_seq)

    def detached(self) -> None:
        """The stream is gone; what was on its way on it is sent again after the next attach."""
        self._state = PumpState.DETACHED
        self._chunks.clear()
        self._unacked.clear()

    def inventory_requested(self) -> None:
        """The master wants the whole content, in the middle of the stream."""
        if self._state is not PumpState.DETACHED:
            self._begin_inventory()

    def next_message(self) -> Batch | Chunk | None:
        """The next thing to send, or None: nothing to say, or the window is full."""
        if self._state is PumpState.DETACHED or self.window_full:
            return None
        if self._chunks:
            return self._next_chunk()
        drained = self._source.journal_drain(self._batch_entries_max)
        if drained is None:
            return None
        first_seq, last_seq, groups = drained
        if first_seq != self._sent_seq + 1:
            self.gaps += 1
            self._begin_inventory()
            return self._next_chunk()
        if last_seq < first_seq:
            raise JournalProtocolError(f"the journal handed out entries {first_seq} to {last_seq}")
        self._sent_seq = last_seq
        self._unacked.append(last_seq)
        return Batch(first_seq, last_seq, groups)

    def acked(self, durable_seq: int) -> None:
        """The master has made everything up to `durable_seq` durable."""
        if self._state is PumpState.DETACHED:
            return
        if durable_seq > self._sent_seq:
            raise JournalProtocolError(
                f"the master acknowledged entry {durable_seq}, but only {self._sent_seq} was sent"
            )
        while self._unacked and self._unacked[0] <= durable_seq:
            self._unacked.popleft()
        if durable_seq > self._durable_seq:
            self._durable_seq = durable_seq
            self._source.journal_ack(durable_seq)

    def _begin_inventory(self) -> None:
        last_seq, parts = self._source.inventory(self._batch_entries_max)
        parts = parts or [b""]  # an empty segment says so too: the master forgets what it had of us
        self._chunks = deque(
            Chunk(last_seq, groups, first=i == 0, last=i == len(parts) - 1) for i, groups in enumerate(parts)
        )
        self._state = PumpState.INVENTORY
        self._unacked.clear()

    def _next_chunk(self) -> Chunk:
        chunk = self._chunks.popleft()
        if chunk.last:
            self._state = PumpState.STREAMING
            self._sent_seq = chunk.last_seq
            self._unacked.append(chunk.last_seq)
            self.inventories_sent += 1
        return chunk
