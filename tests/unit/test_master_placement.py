"""Where new objects go."""

from __future__ import annotations

import random
from collections import Counter

from kvstore.master.placement import Candidate, HostFirstTwoChoices
from kvstore_client.wire import NO_SEGMENT

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
