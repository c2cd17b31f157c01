"""The attach/journal protocol against models of a segment's journal and a master's directory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.segment.journal_pump import Batch, Chunk, JournalProtocolError, JournalPump, PumpState
from support.journal_model import ModelDirectory, ModelJournal


def deliver(directory: ModelDirectory, message: Batch | Chunk) -> int | None:
    """Gives the directory a message; the sequence number to acknowledge, if there is one."""
    if isinstance(message, Batch):
        directory.journal(message.first_seq, message.last_seq, message.groups)
        return directory.durable_seq
    directory.inventory(message.last_seq, message.groups, message.first, message.last)
    return directory.durable_seq if message.last else None


def settle(pump: JournalPump, directory: ModelDirectory) -> None:
    while (message := pump.next_message()) is not None:
        seq = deliver(directory, message)
        if seq is not None:
            pump.acked(seq)


def test_a_detached_pump_has_nothing_to_say() -> None:
    journal = ModelJournal()
    journal.change(1)
    assert JournalPump(journal).next_message() is None


def test_entries_go_out_in_order_and_are_acknowledged_to_the_store() -> None:
    journal, directory = ModelJournal(), ModelDirectory()
    pump = JournalPump(journal, batch_entries_max=3)
    pump.attached(0, need_inventory=False)
    for key in range(10):
        journal.change(key)
    settle(pump, directory)
    assert directory.objects == set(range(10))
    assert journal.acked_seq == 10


def test_the_window_bounds_batches_without_an_ack() -> None:
    journal = ModelJournal()
    pump = JournalPump(journal, batch_entries_max=1, batches_in_flight_max=2)
    pump.attached(0, need_inventory=False)
    for key in range(5):
        journal.change(key)
    assert [pump.next_message() is not None for _ in range(3)] == [True, True, False]
    assert pump.window_full
    pump.acked(1)
    assert not pump.window_full
    assert pump.next_message() == Batch(3, 3, b'[["add", 2]]')


def test_one_ack_may_cover_several_batches() -> None:
    journal = ModelJournal()
    pump = JournalPump(journal, batch_entries_max=1, batches_in_flight_max=3)
    pump.attached(0, need_inventory=False)
    for key in range(3):
        journal.change(key)
    while pump.next_message() is not None:
        pass
    pump.acked(3)
    assert not pump.window_full
    assert journal.acked_seq == 3


def test_after_a_lost_stream_the_journal_resumes_behind_what_is_durable() -> None:
    journal = ModelJournal()
    pump = JournalPump(journal, batch_entries_max=1)
    pump.attached(0, need_inventory=False)
    for key in range(3):
        journal.change(key)
    while pump.next_message() is not None:
        pass
    pump.detached()
    pump.attached(1, need_inventory=False)
    assert journal.acked_seq == 1
    first = pump.next_message()
    assert isinstance(first, Batch) and first.first_seq == 2


def test_an_inventory_is_sent_when_the_journal_no_longer_reaches_back() -> None:
    journal, directory = ModelJournal(entries_max=2), ModelDirectory()
    pump = JournalPump(journal)
    for key in range(5):
        journal.change(key)
    pump.attached(0, need_inventory=False)
    assert pump.state is PumpState.INVENTORY
    settle(pump, directory)
    assert directory.objects == journal.objects
    assert journal.acked_seq == 5


def test_an_empty_segment_announces_that_it_is_empty() -> None:
    journal, directory = ModelJournal(), ModelDirectory()
    directory.objects = {7}
    pump = JournalPump(journal)
    pump.attached(0, need_inventory=True)
    message = pump.next_message()
    assert message == Chunk(0, b"", first=True, last=True)
    deliver(directory, message)
    assert directory.objects == set()


def test_a_master_that_is_ahead_of_the_segment_gets_an_inventory() -> None:
    journal, directory = ModelJournal(), ModelDirectory()
    journal.change(1)
    directory.durable_seq, directory.objects = 99, {5}
    pump = JournalPump(journal)
    pump.attached(99, need_inventory=False)
    settle(pump, directory)
    assert directory.objects == {1}
    assert journal.acked_seq == 1


def test_entries_lost_to_overflow_in_mid_stream_are_mended_by_an_inventory() -> None:
    journal, directory = ModelJournal(entries_max=3), ModelDirectory()
    pump = JournalPump(journal, batch_entries_max=2)
    pump.attached(0, need_inventory=False)
    for key in range(10):
        journal.change(key)
    settle(pump, directory)
    assert directory.objects == set(range(10))
    assert pump.gaps == 1 and pump.inventories_sent == 1


def test_the_master_may_ask_for_an_inventory_at_any_time() -> None:
    journal, directory = ModelJournal(), ModelDirectory()
    pump = JournalPump(journal, batch_entries_max=2)
    pump.attached(0, need_inventory=False)
    for key in range(5):
        journal.change(key)
    assert isinstance(pump.next_message(), Batch)
    pump.inventory_requested()
    settle(pump, directory)
    assert directory.objects == set(range(5))
    assert journal.acked_seq == 5


def test_an_ack_of_an_entry_that_was_never_sent_is_a_protocol_error() -> None:
    journal = ModelJournal()
    journal.change(1)
    pump = JournalPump(journal)
    pump.attached(0, need_inventory=False)
    with pytest.raises(JournalProtocolError, match="acknowledged entry 1, but only 0"):
        pump.acked(1)


def test_an_ack_that_arrives_after_the_stream_is_gone_changes_nothing() -> None:
    journal = ModelJournal()
    journal.change(1)
    pump = JournalPump(journal)
    pump.attached(0, need_inventory=False)
    pump.next_message()
    pump.detached()
    pump.acked(1)
    assert journal.acked_seq == 0


STEP = st.one_of(
    st.tuples(st.just("change"), st.integers(0, 6)),
    st.tuples(st.just("send"), st.just(0)),
    st.tuples(st.just("deliver"), st.just(0)),
    st.tuples(st.just("ack"), st.just(0)),
    st.tuples(st.just("break"), st.just(0)),
    st.tuples(st.just("forget"), st.just(0)),
    st.tuples(st.just("request_inventory"), st.just(0)),
)


@settings(max_examples=400, deadline=None)
@given(
    steps=st.lists(STEP, max_size=60),
    entries_max=st.integers(1, 8),
    batch_entries_max=st.integers(1, 4),
    window=st.integers(1, 3),
)
def test_whatever_happens_the_directory_converges_and_no_put_is_acked_before_it_is_durable(
    steps: list[tuple[str, int]], entries_max: int, batch_entries_max: int, window: int
) -> None:
    journal, directory = ModelJournal(entries_max), ModelDirectory()
    pump = JournalPump(journal, batch_entries_max=batch_entries_max, batches_in_flight_max=window)
    up: list[Batch | Chunk] = []  # on the wire to the master
    down: list[int] = []  # acks on the wire to the segment
    durable_seq_max = 0

    def attach() -> None:
        up.clear()
        down.clear()
        pump.attached(directory.durable_seq, need_inventory=False)

    attach()
    for step, key in steps:
        if step == "change":
            journal.change(key)
        elif step == "send" and (message := pump.next_message()) is not None:
            up.append(message)
        elif step == "deliver" and up:
            seq = deliver(directory, up.pop(0))
            if seq is not None:
                down.append(seq)
        elif step == "ack" and down:
            pump.acked(down.pop(0))
        elif step == "break":
            pump.detached()
            attach()
        elif step == "forget":  # the master comes back with nothing
            pump.detached()
            directory = ModelDirectory()
            attach()
            pump.inventory_requested()
        elif step == "request_inventory":
            pump.inventory_requested()
        durable_seq_max = max(durable_seq_max, directory.durable_seq)
        assert journal.acked_seq <= durable_seq_max
    pump.detached()
    attach()
    settle(pump, directory)
    assert directory.objects == journal.objects
    assert directory.durable_seq == journal.last_seq
    assert journal.acked_seq == journal.last_seq


def test_an_inventory_that_is_asked_for_is_sent_though_the_window_is_full() -> None:
    journal = ModelJournal()
    pump = JournalPump(journal, batch_entries_max=1, batches_in_flight_max=2)
    pump.attached(0, need_inventory=False)
    for key in range(5):
        journal.change(key)
    while pump.next_message() is not None:
        pass
    assert pump.window_full
    pump.inventory_requested()
    directory = ModelDirectory()
    settle(pump, directory)
    assert directory.objects == set(range(5))
    assert pump.state is PumpState.STREAMING
