"""Batches made ready to be stored: nothing lost, nothing twice, nothing that the index would refuse."""

from __future__ import annotations

import random

import pytest

from kvstore.master.state.journal_entries import Staged, staged_inventory, staged_journal
from kvstore.master.state.records import Record, RecordKind
from kvstore_client._native import DirectoryIndex
from kvstore_client.protocol import ENTRIES_MAX, OBJECT_BYTES_MAX, WireError
from kvstore_client.protocol.journal import JournalGroup, JournalOp, decode_groups, encode_groups

OVERSIZED = OBJECT_BYTES_MAX + 1
Entry = tuple[JournalOp, bytes, bytes, int]


def random_groups(rng: random.Random) -> list[JournalGroup]:
    groups = []
    for _ in range(rng.randint(1, 6)):
        count = rng.randint(0, 9)
        lengths = tuple(rng.choice((0, 1, 70, OBJECT_BYTES_MAX, OVERSIZED)) for _ in range(count))
        op = rng.choice((JournalOp.ADD, JournalOp.REMOVE))
        groups.append(JournalGroup(op, rng.randbytes(8), rng.randbytes(16 * count), lengths))
    return groups


def entries_of(groups: list[JournalGroup]) -> list[Entry]:
    return [
        (group.op, group.ns, group.fingerprints[16 * i : 16 * i + 16], length)
        for group in groups
        for i, length in enumerate(group.lengths)
    ]


def is_refused(entry: Entry) -> bool:
    return entry[0] is JournalOp.ADD and entry[3] > OBJECT_BYTES_MAX


def stored(staged: Staged, entries_max: int) -> list[Entry]:
    """What the records say, after all that holds for each of them."""
    entries: list[Entry] = []
    for count, groups, record in staged.records:
        decoded = Record.decode(record, RecordKind(record[6]))
        assert decoded.body == groups
        assert DirectoryIndex.check(groups) == count
        DirectoryIndex().apply(0, groups)
        assert 0 < count <= entries_max
        assert len(entries) % entries_max == 0, "all records but the last are full"
        entries += entries_of(decode_groups(groups))
    return entries


@pytest.mark.parametrize("seed", range(60))
def test_a_journal_is_stored_from_what_was_accepted_on_with_a_remove_for_each_impossible_add(
    seed: int,
) -> None:
    rng = random.Random(seed)
    groups = random_groups(rng)
    entries = entries_of(groups)
    entries_max = rng.randint(1, 12)
    first_seq = rng.choice((1, 2, 1000, 1 << 61))
    skip = rng.randint(0, len(entries))
    staged = staged_journal(encode_groups(groups), first_seq, first_seq + skip - 1, entries_max)
    taken = entries[skip:]
    assert stored(staged, entries_max) == [
        (JournalOp.REMOVE, ns, fingerprint, 0)
        if is_refused((op, ns, fingerprint, length))
        else (op, ns, fingerprint, length)
        for op, ns, fingerprint, length in taken
    ]
    assert staged.entries == len(entries)
    assert staged.refused == sum(map(is_refused, taken))
    # Numbered without a hole.
    expected = first_seq + skip
    for count, _, record in staged.records:
        decoded = Record.decode(record, RecordKind.JOURNAL)
        assert (decoded.first_seq, decoded.last_seq) == (expected, expected + count - 1)
        expected += count
    assert expected == first_seq + len(entries)


@pytest.mark.parametrize("seed", range(60))
def test_an_inventory_is_stored_without_impossible_objects_and_tells_of_removes(seed: int) -> None:
    rng = random.Random(seed)
    groups = random_groups(rng)
    entries = entries_of(groups)
    entries_max = rng.randint(1, 12)
    staged = staged_inventory(encode_groups(groups), 77, entries_max)
    assert stored(staged, entries_max) == [entry for entry in entries if not is_refused(entry)]
    assert staged.has_removes == any(entry[0] is JournalOp.REMOVE for entry in entries)
    assert (staged.entries, staged.refused) == (len(entries), sum(map(is_refused, entries)))
    for _, _, record in staged.records:
        decoded = Record.decode(record, RecordKind.SNAPSHOT)
        assert (decoded.first_seq, decoded.last_seq) == (77, 77)


def test_an_accepted_number_ahead_of_or_behind_the_batch_takes_nothing_or_all() -> None:
    groups = encode_groups([JournalGroup(JournalOp.ADD, bytes(8), bytes(range(48)), (1, 2, 3))])
    assert staged_journal(groups, 10, 12, 100).records == []
    assert staged_journal(groups, 10, 50, 100).records == []
    assert [each.entries for each in staged_journal(groups, 10, 3, 100).records] == [3]


@pytest.mark.parametrize("seed", range(10))
def test_every_cut_and_every_unknown_op_is_malformed(seed: int) -> None:
    rng = random.Random(seed)
    groups = random_groups(rng)
    encoded = encode_groups(groups)
    ends, at = {0}, 0
    for group in groups:
        at += len(group.encode())
        ends.add(at)
    for cut in range(len(encoded)):
        if cut in ends:
            continue
        with pytest.raises(WireError):
            staged_journal(encoded[:cut], 1, 0, 100)
        with pytest.raises(WireError):
            staged_inventory(encoded[:cut], 1, 100)
    for op in (0, 3, 255):
        with pytest.raises(WireError, match="neither ADD nor REMOVE"):
            staged_journal(bytes([op]) + encoded[1:], 1, 0, 100)


def test_a_batch_holds_so_many_entries_and_no_more() -> None:
    def batch(count: int) -> bytes:
        return encode_groups(
            JournalGroup(JournalOp.ADD, bytes(8), bytes(16 * n), (1,) * n) for n in (1, count - 1)
        )

    assert staged_journal(batch(ENTRIES_MAX), 1, 0, ENTRIES_MAX).entries == ENTRIES_MAX
    with pytest.raises(WireError, match=str(ENTRIES_MAX)):
        staged_journal(batch(ENTRIES_MAX + 1), 1, 0, ENTRIES_MAX)
