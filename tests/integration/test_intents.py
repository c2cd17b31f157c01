"""What clients want to become of their pages when a segment runs out of space: retained, demoted, for a time, within
budgets. A real master and a real segment, flooded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore_client import Client, Keep, Namespace
from support.processes import Cluster, segment_metrics
from support.waiting import wait_until

CAPACITY = "16MiB"
TAKEN_BYTES = 64 << 10
"""By an object at most, its key's text included."""
OBJECT_BYTES = TAKEN_BYTES - 512
POOL_OBJECTS = (16 << 20) // TAKEN_BYTES
# At most 128 objects in all, 64 of one namespace.
BUDGETS = ("--retained-fraction-max=0.5", "--retained-namespace-fraction-max=0.25")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("store"), CAPACITY)
    try:
        cluster.start_master()
        cluster.start_segment(options=BUDGETS)
        yield cluster
    finally:
        cluster.close()
        print(cluster.logs())


@pytest.fixture(params=["tcp", "same_host"])
def client(request: pytest.FixtureRequest, store: Cluster) -> Iterator[Client]:
    transport = {request.param: True, ({"tcp", "same_host"} - {request.param}).pop(): False}
    with Client(store.masters, deadline_ms=20_000, **transport) as opened:
        yield opened


@pytest.fixture
def space(client: Client) -> Iterator[Namespace]:
    """Empty, and so again: what it retains is not in the way of the next test."""
    opened = client.namespace(f"intents/{os.urandom(6).hex()}")
    yield opened
    opened.clear()
    flood(client.namespace("flood"))


def keys_of(name: str, count: int) -> list[str]:
    return [f"{name} {number}" for number in range(count)]


def put(space: Namespace, keys: list[str], **options: object) -> None:
    value = os.urandom(OBJECT_BYTES)
    assert space.batch_put(keys, [value] * len(keys), **options) == [True] * len(keys)  # type: ignore[arg-type]


# Of what a flood should wash away: a policy that samples, and chooses itself among policies, may spare some.
SPARED_MAX = 5


def flood(space: Namespace) -> None:
    """Puts three times what the pool holds."""
    salt = os.urandom(6).hex()
    for number in range(3 * POOL_OBJECTS // 32):
        put(space, keys_of(f"{salt} {number}", 32))


def left(space: Namespace, keys: list[str]) -> list[bool]:
    """Which are there, as their segment says; no use of them."""
    return space.batch_exists(keys, pin_ms=1)


def metrics(store: Cluster) -> dict[str, float]:
    return segment_metrics(store.segments["segment"])


def test_a_retained_chain_outlives_a_flood_and_what_is_as_old_does_not(
    store: Cluster, space: Namespace
) -> None:
    chain, others = keys_of("chain", 30), keys_of("other", 30)
    put(space, chain)
    put(space, others)
    assert space.batch_keep(chain, Keep.RETAIN, ttl_ms=600_000) == [True] * 30
    assert metrics(store)["retained_objects"] == 30
    flood(space)
    assert left(space, chain) == [True] * 30
    assert sum(left(space, others)) <= SPARED_MAX
    assert space.batch_keep([*chain, "absent"], Keep.NORMAL) == [True] * 30 + [False]
    flood(space)
    assert sum(left(space, chain)) <= SPARED_MAX, "they go as others do"


def test_pages_can_be_retained_as_they_are_put_and_so_are_those_that_were_there(
    store: Cluster, space: Namespace
) -> None:
    there, fresh = keys_of("there", 10), keys_of("fresh", 10)
    put(space, there)
    value = os.urandom(OBJECT_BYTES)
    assert space.put("one", value, keep=Keep.RETAIN)
    put(space, there + fresh, keep=Keep.RETAIN, ttl_ms=600_000)
    flood(space)
    assert left(space, there + fresh) == [True] * 20
    assert space.get("one") == value


def test_demoted_pages_go_first_unless_they_were_used_since(space: Namespace) -> None:
    old, demoted, used = keys_of("old", 30), keys_of("demoted", 30), keys_of("used", 5)
    for keys in (old, demoted, used):
        put(space, keys)
    assert space.batch_keep(demoted + used, Keep.DEMOTE) == [True] * 35
    assert all(value is not None for value in space.batch_get(used))
    for number in range(POOL_OBJECTS // 4):
        put(space, keys_of(f"more {number}", 4))
        if not any(left(space, demoted)):
            break
        assert all(left(space, old + used)), "an older page went before a demoted one"
    assert not any(left(space, demoted))
    assert sum(left(space, old + used)) > 25


def test_a_retention_ends_with_its_time(store: Cluster, space: Namespace) -> None:
    chain = keys_of("short", 20)
    put(space, chain, keep=Keep.RETAIN, ttl_ms=1)
    wait_until(lambda: metrics(store)["retained_objects"] == 0, "the retention is over", 30)
    assert metrics(store)["retentions_expired"] >= 20
    flood(space)
    assert sum(left(space, chain)) <= SPARED_MAX


def test_of_a_chain_over_the_budget_the_head_is_retained_and_the_client_counts_the_rest(
    store: Cluster, client: Client, space: Namespace
) -> None:
    chain = keys_of("long", 100)
    before = client.stats()["keep_refused"]
    put(space, chain, keep=Keep.RETAIN)
    assert client.stats()["keep_refused"] == before + 36
    assert metrics(store)["retained_objects"] == 64
    assert metrics(store)["retained_bytes"] <= 64 * TAKEN_BYTES
    assert space.batch_keep(chain, Keep.RETAIN) == [True] * 64 + [False] * 36
    flood(space)
    assert left(space, chain) == [True] * 64 + [False] * 36


def test_a_namespace_that_retains_everything_keeps_no_other_out(client: Client, space: Namespace) -> None:
    for number in range(8):
        put(space, keys_of(f"greedy {number}", 32), keep=Keep.RETAIN)
    other = client.namespace(f"other/{os.urandom(6).hex()}")
    modest = keys_of("modest", 60)
    put(other, modest)
    assert left(other, modest) == [True] * 60
    assert other.batch_keep(modest, Keep.RETAIN) == [True] * 60
    flood(space)
    assert left(other, modest) == [True] * 60
    other.clear()


def test_removing_and_clearing_take_the_intent_along(store: Cluster, space: Namespace) -> None:
    removed, cleared = keys_of("removed", 10), keys_of("cleared", 10)
    put(space, removed + cleared, keep=Keep.RETAIN)
    assert all(space.batch_remove(removed))
    put(space, removed)
    assert metrics(store)["retained_objects"] == 10
    flood(space)
    assert sum(left(space, removed)) <= SPARED_MAX
    assert space.clear()
    flood(space)
    assert metrics(store)["retained_objects"] == 0


def test_a_wish_that_can_t_be_is_said_once_and_answered_as_not_done(client: Client, space: Namespace) -> None:
    put(space, ["key"])
    before = client.stats()["bad_arguments"]
    assert space.batch_keep(["key"], 7) == [False]  # type: ignore[arg-type]
    assert space.keep("key", Keep.RETAIN, ttl_ms=-1) is False
    assert space.batch_keep("key", Keep.RETAIN) == []
    assert space.batch_keep(["key", 5], Keep.RETAIN) == [True, False]
    assert client.stats()["bad_arguments"] == before + 4
    assert space.batch_keep([], Keep.DEMOTE) == []


def test_nothing_is_kept_where_no_store_is_and_no_deadline_is_outlasted(tmp_path: Path) -> None:
    with Client("127.0.0.1:1", deadline_ms=200) as alone:
        space = alone.namespace("nobody")
        assert space.batch_keep(["key"], Keep.RETAIN) == [False]
        assert space.pages().keep_hashes(bytes(64), Keep.DEMOTE, deadline_ms=200) == bytes([9, 9])
    assert space.keep("key", Keep.RETAIN) is False, "and after close()"
