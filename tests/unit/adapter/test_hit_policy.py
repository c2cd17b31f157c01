"""Which prefixes can be restored, against the rules written out page by page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_adapter.hit_policy import (
    ALL_PAGES,
    TRAILING_PAGES,
    HitQuery,
    restorable_prefixes,
    window_pages,
)

FLAGS = st.lists(st.booleans(), max_size=40).map(bytes)


def by_the_rules(present: bytes, policy: str, window: int) -> list[int]:
    """The prefixes that SGLang's description of the policy allows."""
    allowed = []
    for prefix in range(1, len(present) + 1):
        first = 0 if policy == ALL_PAGES else max(0, prefix - window)
        if all(present[first:prefix]):
            allowed.append(prefix)
    return allowed


def prefixes(flags: bytes) -> list[int]:
    return [page + 1 for page, flag in enumerate(flags) if flag]


@given(FLAGS, st.sampled_from([ALL_PAGES, TRAILING_PAGES]), st.integers(1, 45))
def test_each_policy_allows_what_its_rule_says(present: bytes, policy: str, window: int) -> None:
    flags = restorable_prefixes(present, policy, window)
    assert len(flags) == len(present)
    assert prefixes(flags) == by_the_rules(present, policy, window)


@pytest.mark.parametrize(
    ("present", "window", "allowed"),
    [
        ([0, 0, 0, 1], 1, [4]),  # a state behind the last page
        ([1, 0, 1, 1], 1, [1, 3, 4]),
        ([0, 1, 1, 1, 0, 1, 1, 1], 3, [4, 8]),
        ([0, 1, 1, 0, 1, 1], 3, []),  # windows with a hole
        ([1, 1, 0, 0], 3, [1, 2]),  # a prefix shorter than the window needs no more than it has
        ([], 3, []),
    ],
)
def test_windows_end_where_all_of_their_pages_are_there(
    present: list[int], window: int, allowed: list[int]
) -> None:
    assert prefixes(restorable_prefixes(bytes(present), TRAILING_PAGES, window)) == allowed


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="block_groups"):
        restorable_prefixes(b"\1", "block_groups", 1)


def test_a_window_has_as_many_pages_as_the_transfer_has_keys_and_at_least_one() -> None:
    assert [window_pages(keys) for keys in (None, [], ["a"], ["a", "b", "c"])] == [1, 1, 1, 3]


@given(st.integers(0, 30), st.data())
def test_a_report_holds_what_all_pools_allow_and_each_pools_own_reach(kv: int, data: st.DataObject) -> None:
    pools = {name: data.draw(st.binary(min_size=kv, max_size=kv)) for name in ("swa", "mamba")}
    pools = {name: bytes(byte & 1 for byte in drawn) for name, drawn in pools.items()}
    query = HitQuery("kv", kv)
    for name, flags in pools.items():
        query.add(name, flags)
    report = query.report()
    expected = set(range(1, kv + 1)).intersection(*(prefixes(flags) for flags in pools.values()))
    assert report.restorable == sorted(expected)
    assert report.hit_pages == max(expected, default=0)
    assert query.is_open == bool(expected)
    reach = {"kv": kv} | {name: max(prefixes(flags), default=0) for name, flags in pools.items()}
    assert report.pool_pages == {name: pages for name, pages in reach.items() if pages}


def test_a_query_without_side_pools_allows_every_prefix_of_the_kv_pages() -> None:
    assert HitQuery("kv", 3).report() == (3, {"kv": 3}, [1, 2, 3])
    assert HitQuery("kv", 0).report() == (0, {}, [])
    assert not HitQuery("kv", 0).is_open


def test_a_verdict_on_other_pages_is_refused() -> None:
    with pytest.raises(ValueError, match="2 verdicts came for 3"):
        HitQuery("kv", 3).add("swa", b"\1\1")


def test_a_very_long_prompt_with_a_long_window_is_worked_in_runs_of_pages() -> None:
    pages = 200_000  # a loop over pages and windows would not come to an end in a test's time
    present = bytearray(pages)
    present[pages - 50_000 :] = b"\1" * 50_000
    query = HitQuery("kv", pages)
    query.add("swa", restorable_prefixes(bytes(present), TRAILING_PAGES, 50_000))
    query.add("mamba", restorable_prefixes(bytes(present), TRAILING_PAGES, 1))
    assert query.report().restorable == [pages]
