"""What the directory takes of a journal or an inventory: checked before it is stored, so that nothing is durable that can't be
applied. One native call makes records of what has come (native/master/batch_staging.hpp)."""

from __future__ import annotations

from typing import NamedTuple

from kvstore.master.state.records import Record, RecordKind
from kvstore_client._native import DirectoryIndex, stage_inventory, stage_journal
from kvstore_client._native import WireError as RefusedByIndex
from kvstore_client.protocol import ENTRIES_MAX, Status, WireError


class StagedRecord(NamedTuple):
    entries: int
    groups: bytes
    record: bytes  # the same in its envelope, as it is stored

    @staticmethod
    def empty_snapshot(seq: int) -> StagedRecord:
        """Of a segment that has nothing."""
        return StagedRecord(0, b"", Record(RecordKind.SNAPSHOT, seq, seq, b"").encode())


class Staged(NamedTuple):
    entries: int  # that came
    refused: int  # of those that are stored; what no directory takes
    has_removes: bool  # among what came
    records: list[StagedRecord]


def staged_journal(groups: bytes, first_seq: int, accepted_seq: int, entries_max: int) -> Staged:
    """Records, of entries_max entries at most, of a journal batch that counts from first_seq, without the entries up to accepted_seq.
    Raises WireError unless it is groups.

    An ADD that says an impossible length becomes a REMOVE of the same object, so that the numbers of all others stay: whatever lies
    there now, it is not what the directory has known until then.
    """
    try:
        entries, refused, removes, records = stage_journal(groups, first_seq, accepted_seq, entries_max)
    except RefusedByIndex as error:
        raise WireError(Status(error.status), str(error)) from None
    return Staged(entries, refused, removes, [StagedRecord(*each) for each in records])


def staged_inventory(groups: bytes, seq: int, entries_max: int) -> Staged:
    """The same of a part of a snapshot that stands for the journal up to `seq`; an ADD that says an impossible length is left out."""
    try:
        entries, refused, removes, records = stage_inventory(groups, seq, entries_max)
    except RefusedByIndex as error:
        raise WireError(Status(error.status), str(error)) from None
    return Staged(entries, refused, removes, [StagedRecord(*each) for each in records])


def apply_entries(index: DirectoryIndex, segment: int, groups: bytes, *, numbered: bool) -> int:
    """Applies stored groups; how many of the entries were left out, as staging says of a journal (`numbered`) or an inventory.
    Raises ValueError unless they are groups."""
    try:
        index.apply(segment, groups)
        return 0
    except RefusedByIndex:  # nothing has been applied
        _, refused, _, records = (
            stage_journal(groups, 1, 0, ENTRIES_MAX) if numbered else stage_inventory(groups, 0, ENTRIES_MAX)
        )
        for _, clean, _ in records:
            index.apply(segment, clean)
        return refused
