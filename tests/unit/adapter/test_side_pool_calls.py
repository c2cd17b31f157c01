"""What the calls on side pools answer, with pools and stores that the test stands in for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hicache_adapter import side_pools
from hicache_adapter.deadlines import Deadline
from hicache_adapter.hit_policy import ALL_PAGES
from hicache_adapter.kv_hints import Wish
from hicache_adapter.model_facts import ModelFacts
from hicache_adapter.recorder import Recorder
from hicache_adapter.side_pools import SidePools
from kvstore_client.throttle import ThrottledLog

KEYS = [f"{number:064x}" for number in range(4)]


class Store:
    """Of pages of one side pool; notes what it is asked."""

    def __init__(self) -> None:
        self.flags = b"\1\1\1\1"
        self.puts: list[tuple[list[str], int]] = []
        self.fails = False

    def present(self, keys: Sequence[str], deadline: Deadline) -> bytes:
        if self.fails:
            raise RuntimeError("it can't be asked")
        return self.flags[: len(keys)]

    def put(self, keys: Sequence[str], memory: Any, depth: int, deadline: Deadline, wish: Wish) -> list[bool]:
        if memory == ["bad"]:
            raise ValueError("no such memory")
        self.puts.append((list(keys), depth))
        return [True] * len(keys)


class Rig:
    def __init__(self) -> None:
        self.store = Store()
        self.weights = SimpleNamespace(may_store=lambda version: self.may_store)
        self.may_store = True
        recorder = SimpleNamespace(loaded=lambda *of: None, stored=lambda *of: None, watch=lambda name: None)
        log = ThrottledLog(logging.getLogger("hicache_adapter"))
        nothing: Any = None
        self.pools = SidePools(
            nothing, nothing, nothing, cast(Recorder, recorder), cast(Any, self.weights), ModelFacts, log
        )

        def memory(count: int, where: list[str]) -> list[str]:
            if "bad" in where:
                raise ValueError("no such memory")
            return where

        plan = SimpleNamespace(page_size=1, page_bytes=10, memory=memory)
        stores = SimpleNamespace(of=lambda version: self.store)
        pool = SimpleNamespace(name="win", plan=plan, shards=("all",), stores=stores)
        self.pools._pools = {"win": cast(Any, pool)}


@pytest.fixture
def rig() -> Rig:
    return Rig()


def transfer(keys: Sequence[str] = KEYS, name: str = "win", where: Sequence[str] | None = None) -> Any:
    indices = list(where) if where is not None else ["slot"] * len(keys)
    return SimpleNamespace(name=name, keys=list(keys), host_indices=indices, hit_policy=ALL_PAGES)


def test_a_pool_that_can_not_be_asked_allows_nothing(rig: Rig) -> None:
    assert rig.pools.hits(KEYS, 4, [transfer()], Deadline(1000), "7").hit_pages == 4
    assert rig.pools.hits(KEYS, 4, [transfer(name="unknown")], Deadline(1000), "7").hit_pages == 0
    rig.store.fails = True
    assert rig.pools.hits(KEYS, 4, [transfer()], Deadline(1000), "7").hit_pages == 0


def test_pages_of_unknown_weights_are_not_stored(rig: Rig) -> None:
    rig.may_store = False
    assert rig.pools.put([transfer()], 0, Deadline(1000), "7") == {"win": [False] * 4}
    assert rig.store.puts == []


def test_two_transfers_of_one_pool_are_answered_one_after_the_other(rig: Rig) -> None:
    answers = rig.pools.put([transfer(KEYS[:1], where=["bad"]), transfer(KEYS[1:3])], 0, Deadline(1000), "7")
    assert answers == {"win": [False, True, True]}


def test_a_page_behind_one_that_is_bad_keeps_its_depth(rig: Rig) -> None:
    where = ["slot", "bad", "slot", "slot"]
    assert rig.pools.put([transfer(where=where)], 5, Deadline(1000), "7") == {
        "win": [True, False, True, True]
    }
    stored = {key: depth + at for keys, depth in rig.store.puts for at, key in enumerate(keys)}
    assert stored == {KEYS[0]: 5, KEYS[2]: 7, KEYS[3]: 8}


def test_a_call_for_more_pages_than_a_request_takes_is_several_requests(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_pools, "KEYS_MAX", 3)
    where = ["slot", "slot", "slot", "bad"]
    assert rig.pools.put([transfer(where=where)], 5, Deadline(1000), "7") == {
        "win": [True, True, True, False]
    }
    monkeypatch.setattr(side_pools, "ENTRIES_MAX", 2)
    rig.store.puts.clear()
    assert rig.pools.put([transfer()], 5, Deadline(1000), "7") == {"win": [True] * 4}
    assert rig.store.puts == [(KEYS[:2], 5), (KEYS[2:], 7)]


def test_a_hit_policy_that_is_not_known_allows_nothing_and_is_said_in_one_line(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    strange = transfer()
    strange.hit_policy = "block_groups"
    for _ in range(3):
        assert rig.pools.hits(KEYS, 4, [strange], Deadline(1000), "7").hit_pages == 0
    (record,) = caplog.records
    assert "'win'" in record.getMessage() and "'block_groups' is not known" in record.getMessage()
    assert not record.exc_info
