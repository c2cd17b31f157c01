"""How much may still be written into the metadata store. Part of the state machine; does no IO.

Between two measurements every write is counted against the room that the last one found, so that the store is
never found fuller than it may be, however fast journals come. Journals stop first: what frees space (the
rewriting of logs) and the few writes that keep a cluster alive (registrations, elections) have room left then.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.master.metadata.store import Op, SpaceLevel, op_bytes
from kvstore.master.state.events import SpaceMeasured


class StoreSpace:
    def __init__(self) -> None:
        self.level = SpaceLevel.NORMAL
        self._journal_room_bytes: int | None = None
        self._upkeep_room_bytes: int | None = None
        self._written_bytes = 0
        self._asked = False

    def measured(self, event: SpaceMeasured) -> None:
        self.level = event.level
        self._journal_room_bytes = event.journal_room_bytes
        self._upkeep_room_bytes = event.upkeep_room_bytes
        self._written_bytes = 0
        self._asked = False

    def wrote(self, ops: Sequence[Op]) -> bool:
        """Counts a write; whether it is time to measure again."""
        if self._journal_room_bytes is None:
            return False
        self._written_bytes += sum(map(op_bytes, ops))
        if self._asked or 2 * self._written_bytes < self._journal_room_bytes:
            return False
        self._asked = True
        return True

    @property
    def takes_journal(self) -> bool:
        return self.level is not SpaceLevel.FULL and self._left(self._journal_room_bytes)

    @property
    def takes_upkeep(self) -> bool:
        return self._left(self._upkeep_room_bytes)

    def _left(self, room_bytes: int | None) -> bool:
        return room_bytes is None or self._written_bytes < room_bytes
