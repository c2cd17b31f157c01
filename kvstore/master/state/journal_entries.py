"""What the directory takes of a journal or an inventory: checked before it is stored, so that nothing is durable that can't be
applied."""

from __future__ import annotations

from kvstore_client._native import DirectoryIndex
from kvstore_client._native import WireError as RefusedByIndex
from kvstore_client.protocol import FINGERPRINT_BYTES, OBJECT_BYTES_MAX, Status, WireError
from kvstore_client.protocol.journal import JournalGroup, JournalOp, decode_groups, encode_groups


def checked_entries(groups: bytes, *, numbered: bool) -> tuple[bytes, int, int]:
    """(groups that the index takes, entries in them, entries it would refuse). Raises WireError unless they are groups.

    An ADD that says an impossible length is left out. Where entries are `numbered` (a journal) a REMOVE of the same
    object stands in its place, so that the numbers of all others stay: whatever lies there now, it is not what
    the directory has known until then.
    """
    try:
        return groups, DirectoryIndex.check(groups), 0
    except RefusedByIndex:
        pass
    kept: list[JournalGroup] = []
    refused = 0
    for group in decode_groups(groups):
        bad = [i for i, length in enumerate(group.lengths) if length > OBJECT_BYTES_MAX]
        if group.op is not JournalOp.ADD or not bad:
            kept.append(group)
            continue
        refused += len(bad)
        start = 0
        for end in (*bad, len(group.lengths)):
            kept.append(_part(group, start, end))
            if numbered and end < len(group.lengths):
                removed = _part(group, end, end + 1)
                kept.append(JournalGroup(JournalOp.REMOVE, group.ns, removed.fingerprints, (0,)))
            start = end + 1
    clean = encode_groups(group for group in kept if group.lengths)
    try:
        return clean, DirectoryIndex.check(clean), refused
    except RefusedByIndex as error:
        raise WireError(Status(error.status), str(error)) from None


def apply_entries(index: DirectoryIndex, segment: int, groups: bytes, *, numbered: bool) -> int:
    """Applies stored groups; how many of the entries were left out, as `checked_entries` says. Raises ValueError
    unless they are groups."""
    try:
        index.apply(segment, groups)
        return 0
    except RefusedByIndex:  # nothing has been applied
        clean, _, refused = checked_entries(groups, numbered=numbered)
        index.apply(segment, clean)
        return refused


def _part(group: JournalGroup, start: int, end: int) -> JournalGroup:
    fingerprints = group.fingerprints[start * FINGERPRINT_BYTES : end * FINGERPRINT_BYTES]
    return JournalGroup(group.op, group.ns, fingerprints, group.lengths[start:end])
