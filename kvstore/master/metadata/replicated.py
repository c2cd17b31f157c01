"""What a metadata store offers beyond `MetadataStore` when several masters share it: an election, and following."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from kvstore.common.errors import StoreError
from kvstore.master.metadata.attendance import Attendance
from kvstore.master.metadata.store import Fence, KeyUpdate, MetadataStore


class RevisionGoneError(StoreError):
    """The revision asked for is no longer kept: read the present state instead."""


class StoreReader(Protocol):
    """Reads of a store: what it has now, or what it had at one revision."""

    async def get(self, key: bytes) -> bytes | None: ...

    def scan(self, prefix: bytes) -> AsyncIterator[list[tuple[bytes, bytes]]]: ...


@dataclass(frozen=True, slots=True)
class Update:
    """What one revision changed, in order. There may be nothing in it for the reader."""

    revision: int
    changes: tuple[KeyUpdate, ...]


class Tenure:
    """One time as the leader. `ended` is set when it is over, whether we know why or not."""

    def __init__(self, fence: Fence, revision: int) -> None:
        self.fence = fence
        self.revision = revision  # nothing that an earlier leader wrote is newer
        self.ended = asyncio.Event()
        self.why = ""
        # Until then (time.monotonic()) nobody else can lead, as far as this process knows. None: until it has ended.
        self.lasts_until: float | None = None

    @property
    def is_certain(self) -> bool:
        """Whether nobody else can lead now: a process that was stopped goes on before it has heard that its lease is over."""
        return not self.ended.is_set() and (self.lasts_until is None or time.monotonic() < self.lasts_until)

    def end(self, why: str) -> None:
        if not self.ended.is_set():
            self.why = why
            self.ended.set()


class ReplicatedStore(MetadataStore):
    @property
    def attendance(self) -> Attendance | None:
        """None: it is not known who reads this store, and nobody can wait for them."""
        return None

    @abstractmethod
    async def campaign(self) -> Tenure:
        """Returns when this master has become the leader; may take for ever. StoreError when the store can't be reached."""

    @abstractmethod
    def announce(self, address: str) -> None:
        """Where followers and segments reach this master when it leads; before campaign()."""

    @abstractmethod
    async def resign(self) -> None:
        """Gives the leadership back, so that another master need not wait for the lease to run out. Idempotent."""

    @abstractmethod
    async def leader_address(self) -> str | None:
        """What the leader has announced; None while there is none."""

    @abstractmethod
    async def revisions(self) -> tuple[int, int]:
        """(the store's newest revision, that of this cluster's newest commit or 0)"""

    @abstractmethod
    def at(self, revision: int) -> StoreReader:
        """The records as they were at `revision`."""

    @abstractmethod
    def follow(self, revision: int) -> AsyncIterator[Update]:
        """Every update after `revision`, without gaps. RevisionGoneError when they are no longer kept."""
