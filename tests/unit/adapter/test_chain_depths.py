"""How deep in its prefix chain a batch lies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hicache_adapter.chain_depths import KEYS_MAX, ChainDepths

KEYS = [f"{number:064x}" for number in range(300)]


def with_prefix(keys: Any) -> Any:
    return SimpleNamespace(prefix_keys=keys)


def test_the_keys_before_a_batch_say_how_deep_it_lies() -> None:
    depths = ChainDepths()
    assert depths.of(KEYS[5:], with_prefix(KEYS[:5])) == 5
    assert depths.of(KEYS, with_prefix([])) == 0


@pytest.mark.parametrize("nothing", [None, with_prefix(None), with_prefix((None,)), {"unknown": 1}])
def test_without_them_a_query_for_the_prompt_does(nothing: Any) -> None:
    depths = ChainDepths()
    assert depths.of(KEYS[128:], nothing) == 0
    depths.asked(KEYS, nothing)
    assert [depths.of(KEYS[at : at + 128], nothing) for at in (0, 128, 256)] == [0, 128, 256]
    assert depths.of(["f" * 64], nothing) == 0


def test_the_newest_query_counts() -> None:
    depths = ChainDepths()
    depths.asked(KEYS, None)
    depths.asked(KEYS[100:], None)
    assert depths.of(KEYS[150:], None) == 50


def test_what_is_remembered_is_bounded_and_the_oldest_goes() -> None:
    depths = ChainDepths()
    depths.asked(KEYS, None)
    for number in range(KEYS_MAX // 200):
        depths.asked([f"{number}-{at}" for at in range(200)], None)
    assert depths.of(KEYS[128:], None) == 0
    assert sum(len(query.keys) for query in depths._queries) <= KEYS_MAX
    depths.asked([*KEYS] * KEYS_MAX, None)
    assert sum(len(query.keys) for query in depths._queries) <= KEYS_MAX


def test_queries_that_say_what_is_before_them_are_not_remembered() -> None:
    depths = ChainDepths()
    depths.asked(KEYS, with_prefix(["a" * 64]))
    assert depths.of(KEYS[10:], None) == 0


@pytest.mark.parametrize("keys", [[None, 7], [[], {}], ["x", ["y"]]])
def test_what_is_no_key_has_no_depth_and_breaks_nothing(keys: Any) -> None:
    depths = ChainDepths()
    depths.asked(keys, None)
    assert depths.of(keys[1:], None) == 0
    assert depths.of([], None) == 0
