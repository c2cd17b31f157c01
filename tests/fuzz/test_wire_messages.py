"""Messages that Python takes apart, of any bytes: what is read means the same when it is written again, or it is a WireError."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_client import protocol
from kvstore_client.protocol import HEADER_BYTES, Header, WireError, directory, journal, link
from support.fuzzing import changed, fuzzed, golden_bodies, golden_frames, hostile, says_why

MESSAGES: list[Any] = [
    directory.HelloRequest,
    directory.HelloReply,
    directory.OpenNamespaceRequest,
    directory.NamespaceReply,
    directory.BumpNamespaceRequest,
    directory.MapRequest,
    directory.MapReply,
    link.LinkRequest,
    link.JournalMessage,
    link.InventoryMessage,
    link.HeartbeatMessage,
    link.AckMessage,
    link.EntriesRefusedMessage,
]
GROUPS = [message[24:] for message in golden_bodies("JournalMessage")]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_a_message_means_the_same_when_it_is_written_again(message: Any) -> None:
    originals = golden_bodies(message.__name__)
    assert originals, "each message has golden vectors"

    @given(hostile(originals))
    @fuzzed(120)
    def check(body: bytes) -> None:
        try:
            read = message.decode(body)
        except WireError as error:
            says_why(error)
            return
        try:
            written = read.encode()
        except WireError:
            # Only what nobody bounds on the way in: a reason is read up to what its frame may hold.
            assert message is link.EntriesRefusedMessage
            return
        assert message.decode(written) == read
        assert len(written) <= len(body)

    check()


@given(hostile(golden_frames("request", "reply", "notice")))
@fuzzed(300)
def test_a_header_and_a_reply_mean_the_same_when_they_are_written_again(frame: bytes) -> None:
    if len(frame) < HEADER_BYTES:
        return
    try:
        header = Header.decode(frame)
        assert header.encode() == frame[:HEADER_BYTES]
        prefix, fields = protocol.decode_reply(frame[HEADER_BYTES:])
    except WireError as error:
        says_why(error)
        return
    assert protocol.decode_reply(prefix.encode() + fields) == (prefix, fields)


@given(hostile(GROUPS), st.integers(0, 10))
@fuzzed(300)
def test_journal_groups_are_read_whole_or_refused_and_skipping_takes_away_the_first(
    data: bytes, skip: int
) -> None:
    try:
        groups = journal.decode_groups(data)
    except WireError as error:
        says_why(error)
        with pytest.raises(WireError):
            journal.count_entries(data)
        return
    entries = [
        (g.op, g.ns, g.fingerprints[16 * i : 16 * i + 16], n) for g in groups for i, n in enumerate(g.lengths)
    ]
    assert journal.count_entries(data) == len(entries)
    assert journal.decode_groups(journal.encode_groups(groups)) == groups
    if skip > len(entries):
        with pytest.raises(WireError):
            journal.skip_entries(data, skip)
        return
    left = journal.decode_groups(journal.skip_entries(data, skip))
    assert [
        (g.op, g.ns, g.fingerprints[16 * i : 16 * i + 16], n) for g in left for i, n in enumerate(g.lengths)
    ] == entries[skip:]


@given(changed(golden_bodies("MapReply")), st.dictionaries(st.integers(0, 3), st.integers(0, (1 << 64) - 1)))
@fuzzed(150)
def test_a_map_that_was_read_can_be_served(fields: bytes, used_bytes: dict[int, int]) -> None:
    try:
        read = protocol.MapReply.decode(fields)
    except WireError:
        return
    served = protocol.MapReply.decode(directory.EncodedMap(read.segments).refresh(used_bytes))
    assert [s.used_bytes for s in served.segments] == [
        used_bytes.get(s.index, s.used_bytes) for s in read.segments
    ]
