"""The interface of a metadata store, and the bounds that every store keeps.

A store is an ordered map of bytes to bytes, written in atomic, durable, fenced commits. The bounds are those
of the narrowest store (etcd: 128 operations and 1.5 MiB a transaction, no two operations on one key), so
that a caller that fits one fits all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from kvstore.common.errors import StoreError

COMMIT_OPS_MAX = 127
COMMIT_BYTES_MAX = 1 << 20
KEY_BYTES_MAX = 256
OP_OVERHEAD_BYTES = 64  # counted for each operation besides its key and value
SCAN_PAGE_BYTES = 1 << 20

# Keys that start with this byte belong to the store itself and are never scanned or written by a caller.
INTERNAL_PREFIX = b"\x00"
# A store writes it, durably, when it finds that commits are gone which had returned. Whoever has drawn the consequences deletes it.
COMMITS_LOST_KEY = b"m/commits-lost"


@dataclass(frozen=True, slots=True)
class Put:
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Deleting an absent key is nothing."""

    key: bytes


@dataclass(frozen=True, slots=True)
class DeleteRange:
    """Deletes every key k with start <= k < end."""

    start: bytes
    end: bytes


Op = Put | Delete | DeleteRange


@dataclass(frozen=True, slots=True)
class KeyUpdate:
    """What a commit has done to one key; `value` is None for a deletion."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Fence:
    """The right to write. `term` is higher than that of every holder before."""

    term: int


class SpaceLevel(IntEnum):
    """How full a store is."""

    NORMAL = 0
    TIGHT = 1  # rewrite logs early, they hold less than they take
    FULL = 2  # write nothing but what frees space


@dataclass(frozen=True, slots=True)
class Space:
    """How full a store is; `text` is what an operator should know. The rooms are what journals, and what frees space, may
    write until it is measured again; None: no bound."""

    level: SpaceLevel = SpaceLevel.NORMAL
    text: str = ""
    journal_room_bytes: int | None = None
    upkeep_room_bytes: int | None = None


def op_bytes(op: Op) -> int:
    if isinstance(op, Put):
        return OP_OVERHEAD_BYTES + len(op.key) + len(op.value)
    if isinstance(op, Delete):
        return OP_OVERHEAD_BYTES + len(op.key)
    return OP_OVERHEAD_BYTES + len(op.start) + len(op.end)


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all keys that start with `prefix`."""
    trimmed = prefix.rstrip(b"\xff")
    if not trimmed:
        raise StoreError("a prefix of 0xFF bytes alone has no end")
    return trimmed[:-1] + bytes([trimmed[-1] + 1])


class OutOfBoundsError(StoreError):
    """A commit breaks a bound that every store keeps: nothing was written, and nothing ever would be."""


class OpSet:
    """Operations that can go into one commit together: within the bounds, and none touching another's
    keys."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.size_bytes = 0
        self._keys: set[bytes] = set()
        self._ranges: list[DeleteRange] = []

    def fits(self, ops: Sequence[Op]) -> bool:
        """Whether all of `ops` can join."""
        if len(self.ops) + len(ops) > COMMIT_OPS_MAX:
            return False
        if self.size_bytes + sum(op_bytes(op) for op in ops) > COMMIT_BYTES_MAX:
            return False
        return not any(self._touches(op) for op in ops)

    def add(self, ops: Sequence[Op]) -> None:
        """Raises OutOfBoundsError when an operation breaks a bound."""
        for op in ops:
            for key in (op.start, op.end) if isinstance(op, DeleteRange) else (op.key,):
                if not 0 < len(key) <= KEY_BYTES_MAX:
                    raise OutOfBoundsError(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(key)}")
                if key.startswith(INTERNAL_PREFIX):
                    raise OutOfBoundsError("keys that start with a zero byte belong to the store")
            if not self.fits((op,)):
                raise OutOfBoundsError(
                    f"a commit holds at most {COMMIT_OPS_MAX} operations and {COMMIT_BYTES_MAX} bytes, "
                    "and touches each key once: split it"
                )
            self.ops.append(op)
            self.size_bytes += op_bytes(op)
            if isinstance(op, DeleteRange):
                self._ranges.append(op)
            else:
                self._keys.add(op.key)

    def _touches(self, op: Op) -> bool:
        if isinstance(op, DeleteRange):
            return any(op.start <= key < op.end for key in self._keys) or any(
                op.start < other.end and other.start < op.end for other in self._ranges
            )
        return op.key in self._keys or any(r.start <= op.key < r.end for r in self._ranges)


class MetadataStore(ABC):
    """All methods run on one event loop and never block it. Failures raise StoreError."""

    # Of commits that are made durable together, by commit_together().
    COMMITS_TOGETHER_MAX = 1

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def acquire(self) -> Fence:
        """Become the writer. From here on commits with an older fence raise FencedError."""

    @abstractmethod
    async def commit(self, ops: Sequence[Op], fence: Fence) -> None:
        """All of `ops` or none, durable on return. StoreError leaves the outcome unknown, except for a
        FencedError or an OutOfBoundsError, where nothing was written. The same commit may be made again."""

    async def commit_together(self, commits: Sequence[Sequence[Op]], fence: Fence) -> None:
        """Commits in their order, COMMITS_TOGETHER_MAX at most, each atomic, all durable on return. StoreError leaves the outcome of
        each unknown, but for the exceptions that commit() makes."""
        for ops in commits:
            await self.commit(ops, fence)

    @abstractmethod
    async def get(self, key: bytes) -> bytes | None: ...

    @abstractmethod
    def scan(self, prefix: bytes) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        """Every (key, value) under a non-empty prefix in key order, in pages of about SCAN_PAGE_BYTES. Sees
        all commits that returned before it was called; may or may not see later ones."""

    @abstractmethod
    async def size_bytes(self) -> int:
        """What the store occupies, for watching its growth."""

    async def space(self, pending_bytes: int = 0) -> Space:
        """`pending_bytes`: what is on its way into the store."""
        return Space()

    async def keep_up(self) -> None:
        """Housekeeping, which may take long; the writer calls it again and again, a few seconds after it has returned."""
        return

    @abstractmethod
    async def close(self) -> None:
        """Idempotent."""


def checked_ops(ops: Sequence[Op]) -> list[Op]:
    """The operations of one commit, after OpSet has found nothing wrong. For stores."""
    checked = OpSet()
    checked.add(ops)
    return checked.ops
