"""A batch of SGLang's in which some pages can't be what they should be."""

from __future__ import annotations

import random

import pytest

from hicache_adapter.batches import page_by_page_where_one_is_bad


class Store:
    """Refuses whole batches, as a call that checks its arguments first."""

    def __init__(self, bad: set[str]) -> None:
        self.bad = bad
        self.done: list[tuple[str, int, int]] = []
        self.faults: list[str] = []

    def run(self, keys: list[str], where: list[int], at: int) -> list[bool]:
        for key in keys:
            if key in self.bad:
                raise TypeError(key)
        self.done += [
            (key, place, at + number) for number, (key, place) in enumerate(zip(keys, where, strict=True))
        ]
        return [key != "miss" for key in keys]

    def fault(self, error: Exception) -> None:
        self.faults.append(str(error))

    def ask(self, keys: list[str]) -> list[bool]:
        return page_by_page_where_one_is_bad(keys, list(range(len(keys))), 1, self.run, self.fault)


def test_a_bad_page_fails_alone_and_the_others_once_each() -> None:
    keys = [str(number) for number in range(128)]
    for seed in range(20):
        bad = set(random.Random(seed).sample(keys, seed))
        store = Store(bad)
        assert store.ask(keys) == [key not in bad for key in keys], f"seed {seed}"
        assert sorted(store.done, key=lambda done: done[2]) == [
            (key, number, number) for number, key in enumerate(keys) if key not in bad
        ]
        assert sorted(store.faults) == sorted(bad)


def test_a_batch_without_a_fault_is_one_call() -> None:
    calls = []
    store = Store(set())
    page_by_page_where_one_is_bad(
        ["a", "miss", "b"], [0, 1, 2], 1, lambda *call: calls.append(call) or store.run(*call), store.fault
    )
    assert len(calls) == 1


def test_a_failure_of_another_kind_ends_the_call() -> None:
    def broken(*_: object) -> list[bool]:
        raise RuntimeError("not an argument's fault")

    with pytest.raises(RuntimeError):
        page_by_page_where_one_is_bad(["a", "b"], [0, 1], 1, broken, lambda error: None)


def test_places_that_are_not_those_of_the_keys_are_refused_as_a_whole() -> None:
    with pytest.raises(ValueError, match="2 pages of 16 slots don't lie in 31"):
        page_by_page_where_one_is_bad(["a", "b"], list(range(31)), 16, Store(set()).run, lambda error: None)
