"""How long a call may take: by its bytes, by the thread, and never for two deadlines."""

from __future__ import annotations

import threading

import pytest

from hicache_adapter import AdapterConfig
from hicache_adapter.config import CALL_MS_MAX
from hicache_adapter.deadlines import Deadline, Deadlines

MIB = 1 << 20


def deadlines(**options: int) -> Deadlines:
    """Of a backend that this thread has attached."""
    return Deadlines(AdapterConfig.from_extra_config({"masters": "a:1", **options}, {}))


def about(deadline: Deadline, expected_ms: int) -> bool:
    return expected_ms - 100 < deadline.left_ms <= expected_ms


def test_time_grows_with_bytes_at_the_floor_rate() -> None:
    some = deadlines(deadline_ms=300, floor_rate_mib_s=100)
    assert about(some.carrying(0), 300)
    assert about(some.carrying(100 * MIB), 1300)
    assert about(some.carrying(300 * MIB), 3300)


def test_no_call_is_given_longer_than_sglang_can_wait() -> None:
    assert about(deadlines(deadline_ms=300, floor_rate_mib_s=1).carrying(1 << 40), CALL_MS_MAX)
    assert about(deadlines(deadline_ms=5000).carrying(1 << 40), CALL_MS_MAX)


def test_a_batch_of_128_pages_of_a_large_model_is_given_more_than_ten_gigabit_take() -> None:
    pages_bytes = 128 * 8 * MIB
    seconds_at_10_gbit = pages_bytes / (10e9 / 8)
    assert deadlines().carrying(pages_bytes).left_ms / 1000 > 4 * seconds_at_10_gbit


def test_what_carries_pages_may_stall_for_as_long_as_what_carries_none() -> None:
    some = deadlines(deadline_ms=300, floor_rate_mib_s=100)
    assert some.carrying(400 * MIB).stall_ms == some.short().stall_ms == 300
    assert some.carrying(400 * MIB).short_left_ms == 300


def test_a_question_on_the_thread_that_attached_the_backend_has_little_time_and_others_all() -> None:
    some = deadlines(deadline_ms=2000)
    assert some.on_scheduler
    assert about(some.query(), 50)
    elsewhere: list[Deadline] = []
    thread = threading.Thread(target=lambda: elsewhere.append(some.query()))
    thread.start()
    thread.join(10)
    assert about(elsewhere[0], 2000)


def test_a_shorter_deadline_holds_on_the_scheduler_too() -> None:
    assert deadlines(deadline_ms=20, scheduler_deadline_ms=400).query().left_ms <= 20


def test_a_deadline_ends_at_nothing_left() -> None:
    assert (Deadline(0).left_ms, Deadline(0).short_left_ms) == (0, 0)


@pytest.mark.parametrize(("deadline_ms", "stall_ms"), [(100, 100), (100, 300)])
def test_nothing_stalls_for_longer_than_it_may_take(deadline_ms: int, stall_ms: int) -> None:
    assert Deadline(deadline_ms, stall_ms).stall_ms == 100
