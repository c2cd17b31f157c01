"""Which copies are too many."""

from __future__ import annotations

import random

from kvstore.master.state.surplus import Holder, surplus


def test_so_many_stay_as_are_wanted_and_one_at_least() -> None:
    rng = random.Random(7)
    for _ in range(500):
        holders = [
            Holder(i, rng.choice("abc"), rng.random() < 0.3, rng.random()) for i in range(rng.randint(1, 6))
        ]
        wanted = rng.randint(0, 5)
        gone = surplus(holders, wanted)
        assert len(set(gone)) == len(gone) == max(0, len(holders) - max(1, wanted)), (holders, wanted)


def test_the_fullest_goes() -> None:
    assert surplus([Holder(0, "a", False, 0.2), Holder(1, "b", False, 0.9)], 1) == [1]
    assert surplus([Holder(0, "a", False, 0.9), Holder(1, "b", False, 0.2)], 1) == [0]


def test_a_doubtful_one_goes_however_much_room_it_has() -> None:
    assert surplus([Holder(0, "a", True, 0.1), Holder(1, "b", False, 0.9)], 1) == [0]


def test_those_that_stay_are_on_different_hosts_where_that_can_be() -> None:
    holders = [Holder(0, "a", False, 0.1), Holder(1, "a", False, 0.2), Holder(2, "b", False, 0.9)]
    assert surplus(holders, 2) == [1]
    assert surplus(holders[:2], 2) == []
