"""Where new objects go."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kvstore.master.state.placement import Candidate, HostFirstTwoChoices
from kvstore_client.protocol import NO_SEGMENT

GIB = 1 << 30
OLD = float("-inf")


def policy(seed: int = 1, **options: float) -> HostFirstTwoChoices:
    return HostFirstTwoChoices(random.Random(seed), **options)  # type: ignore[arg-type]


def candidates(*used_bytes: int, fresh_since: float = OLD) -> list[Candidate]:
    return [Candidate(i, 10 * GIB, used, fresh_since) for i, used in enumerate(used_bytes)]


def indexes(chosen: list[Candidate]) -> list[int]:
    return [candidate.index for candidate in chosen]


def test_nothing_is_chosen_where_nobody_is() -> None:
    assert policy().choose(0, [], 3, 100, 1) == []


def test_the_own_host_is_first_while_it_has_room() -> None:
    assert indexes(policy().choose(0, candidates(0, 5 * GIB, 0), 1, GIB, 20)) == [1]


def test_a_full_own_host_gives_way_to_one_with_room_but_not_to_others_as_full() -> None:
    assert indexes(policy().choose(0, candidates(0, 10 * GIB), 1, GIB, 1)) == [0]
    assert indexes(policy().choose(0, candidates(10 * GIB, 10 * GIB), 1, GIB, 1)) == [1]


def test_room_ends_before_the_evictor_begins() -> None:
    (candidate,) = candidates(8 * GIB)
    assert candidate.has_room(0, GIB // 2)
    assert not candidate.has_room(0, GIB)
    assert indexes(policy().choose(0, candidates(0, 8 * GIB), 1, GIB, 1)) == [0]


class ReportingSegment:
    """Evicts down to `low` of its capacity when it is fuller than `high`, and reports so."""

    def __init__(self, candidate: Candidate, high: float, low: float) -> None:
        self.candidate = candidate
        self.high, self.low = high, low
        self.stored_bytes = candidate.used_bytes

    def put(self, now: float, size_bytes: int) -> None:
        self.stored_bytes += size_bytes
        if self.stored_bytes > self.high * self.candidate.capacity_bytes:
            self.stored_bytes = int(self.low * self.candidate.capacity_bytes)
            self.candidate.evicted_at = now
        self.candidate.used_bytes, self.candidate.placed_bytes = self.stored_bytes, 0


@pytest.mark.parametrize(
    ("high", "low"), [(0.95, 0.90), (0.60, 0.50)], ids=["nearly full", "kept from filling"]
)
def test_one_writer_fills_its_own_segment_and_then_all_the_others(high: float, low: float) -> None:
    segments = [ReportingSegment(c, high, low) for c in candidates(*[0] * 10)]
    chooser = policy(5)
    crowd = [segment.candidate for segment in segments]
    batch_bytes = 64 << 20
    written: Counter[int] = Counter()
    home = 3
    for step in range(int(1.5 * 10 * 10 * GIB / batch_bytes)):
        now = step * 0.1
        had_room = crowd[home].has_room(now, batch_bytes)
        chosen = chooser.choose(now, crowd, home, batch_bytes, 1)[0].index
        assert chosen == home or not had_room, f"{chosen} at step {step} while home has room"
        segments[chosen].put(now, batch_bytes)
        written[chosen] += batch_bytes
    others = [written[index] for index in range(10) if index != home]
    assert min(others) > 0.5 * low * 10 * GIB, written
    assert written[home] < 0.3 * sum(written.values()), written


def test_a_segment_that_evicts_has_no_room_whatever_it_reports() -> None:
    crowd = candidates(5 * GIB, 8 * GIB)
    crowd[0].evicted_at = 100.0
    assert indexes(policy().choose(101.0, crowd, 0, 1, 1)) == [1]
    assert indexes(policy().choose(200.0, crowd, 0, 1, 1)) == [0]


def test_a_large_batch_is_striped_and_the_stripe_is_bounded() -> None:
    assert len(policy().choose(0, candidates(*[0] * 20), NO_SEGMENT, GIB, 3)) == 3
    assert len(policy().choose(0, candidates(*[0] * 20), NO_SEGMENT, GIB, 300)) == 8


def test_the_emptier_of_two_is_taken() -> None:
    for seed in range(20):
        assert indexes(policy(seed).choose(0, candidates(9 * GIB, GIB), NO_SEGMENT, 1, 1)) == [1]


def test_an_empty_newcomer_gets_at_most_twice_its_fair_share() -> None:
    chooser = policy(3, slow_start_s=0.0)
    crowd = candidates(*[10 * GIB] * 9, 0)
    counts = Counter(indexes([chooser.choose(0, crowd, NO_SEGMENT, 1, 1)[0] for _ in range(5000)]))
    assert counts[9] <= 2.2 * 5000 / 10


def test_a_segment_that_has_just_joined_starts_slowly() -> None:
    crowd = [*candidates(5 * GIB), Candidate(1, 10 * GIB, 0, fresh_since=100.0)]
    assert indexes(policy().choose(101.0, crowd, NO_SEGMENT, 1, 1)) == [0]
    assert indexes(policy().choose(160.0, crowd, NO_SEGMENT, 1, 1)) == [1]


def test_what_was_placed_and_not_reported_yet_counts_as_used() -> None:
    crowd = candidates(0, GIB)
    crowd[0].placed_bytes = 2 * GIB
    assert indexes(policy().choose(0, crowd, NO_SEGMENT, 1, 1)) == [1]


def test_full_segments_share_evenly() -> None:
    chooser = policy(4)
    crowd = candidates(*[10 * GIB] * 4)
    for _ in range(400):
        for chosen in chooser.choose(0, crowd, NO_SEGMENT, 1000, 1):
            chosen.placed_bytes += 1000
    placed = [candidate.placed_bytes for candidate in crowd]
    assert max(placed) - min(placed) <= 20_000


def test_copies_are_chosen_on_hosts_that_have_none_as_long_as_there_are_such() -> None:
    hosts = ["a", "a", "b", "b", "c"]
    all_of_them = [Candidate(i, 10 * GIB, 0, OLD, host=host) for i, host in enumerate(hosts)]
    for seed in range(50):
        two = policy(seed).choose_copies(0, all_of_them, all_of_them[0], 2)
        assert {c.host for c in two} == {"b", "c"}, seed
        four = policy(seed).choose_copies(0, all_of_them, all_of_them[0], 4)
        assert sorted(indexes(four)) == [1, 2, 3, 4], seed
        assert indexes(policy(seed).choose_copies(0, all_of_them[:2], all_of_them[0], 3)) == [1], seed
