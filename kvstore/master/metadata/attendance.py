"""Which masters may be serving reads, kept in the store that they share.

Each master has an entry there for as long as it may answer from what it has read: the entry ends by itself some time after its
master was last heard, and a master that can't renew it stops to answer before that. So whoever must be sure that no master
answers from before some change asks for the entries, and waits until each has confirmed the change or is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvstore.common.errors import StoreError


@dataclass(frozen=True, slots=True)
class Stay:
    """One entry, from when it was made until it ends."""

    address: str
    lease_id: int
    revision: int  # of the store when it was made: whoever looks later sees it
    lasts_s: float


class NoEntriesError(StoreError):
    """The store has no room: it takes no entry now, and nothing else that a leader writes, a clear neither."""


class Attendance(Protocol):
    """All methods raise StoreError."""

    async def enter(self, address: str, lasts_s: float) -> Stay:
        """Replaces an entry of the same address. It has confirmed nothing yet. Raises NoEntriesError."""

    async def renew(self, stay: Stay, timeout_s: float) -> float:
        """The seconds that it lasts from now; 0 when it has ended."""

    async def confirm(self, stay: Stay, revision: int) -> None:
        """What this master answers is no older than `revision`."""

    async def leave(self, stay: Stay) -> None: ...

    async def confirmed(self) -> dict[str, int]:
        """What each master has confirmed; 0: nothing yet."""

    async def changed_at(self, key: bytes) -> int:
        """The revision of the newest change of one of the records; 0 when it is not there."""
