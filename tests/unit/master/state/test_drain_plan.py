"""Where the pages of a draining segment go: free room first, and others' places only for what is hot."""

from __future__ import annotations

import pytest

from kvstore.master.state.drain_plan import DrainWalk, MoveOrder, Target, kept_share

MIB = 1 << 20
NS = b"namespac"


def page(number: int) -> bytes:
    return number.to_bytes(16, "little")


def walk(targets: list[Target], *, source_bytes: int = 64 * MIB, may_evict: bool = True) -> DrainWalk:
    return DrainWalk(
        source_bytes,
        source_bytes,
        targets,
        may_evict=may_evict,
        order_objects_max=16,
        order_bytes_max=8 * MIB,
    )


def feed(plan: DrainWalk, count: int, length: int = MIB) -> list[MoveOrder]:
    for i in range(count):
        plan.only_here(NS, page(i), length)
    return plan.take(rest=True)


def test_free_room_is_shared_out_and_nothing_is_evicted() -> None:
    targets = [Target(1, 64 * MIB, 0), Target(2, 64 * MIB, 16 * MIB)]
    plan = walk(targets)
    orders = feed(plan, 64)
    assert not any(order.may_evict for order in orders)
    given = {index: sum(o.size_bytes for o in orders if o.target == index) for index in (1, 2)}
    assert sum(given.values()) == 64 * MIB and plan.left_objects == 0
    assert abs(given[1] - given[2] - 16 * MIB) <= 2 * MIB, "the emptier one was not filled first"
    assert all(order.size_bytes <= 8 * MIB and len(order.fingerprints) <= 16 for order in orders)


def test_where_there_is_no_room_the_hottest_share_takes_the_place_of_others() -> None:
    # All are full: of the pages of three segments those of two are left, two thirds of each.
    targets = [Target(1, 64 * MIB, 63 * MIB), Target(2, 64 * MIB, 63 * MIB)]
    plan = walk(targets)
    orders = feed(plan, 64)
    assert all(order.may_evict for order in orders)
    moved = sorted(int.from_bytes(fp, "little") for order in orders for fp in order.fingerprints)
    assert moved == list(range(len(moved))), "those are not the hottest"
    assert 40 <= len(moved) <= 44 and plan.left_objects == 64 - len(moved)
    given = [sum(o.size_bytes for o in orders if o.target == index) for index in (1, 2)]
    assert abs(given[0] - given[1]) <= 2 * MIB, "one of them pays for all"


def test_nothing_is_evicted_where_it_may_not_be() -> None:
    targets = [Target(1, 64 * MIB, 55 * MIB)]
    plan = walk(targets, may_evict=False)
    orders = feed(plan, 64)
    assert not any(order.may_evict for order in orders)
    assert sum(order.size_bytes for order in orders) == 8 * MIB and plan.left_objects == 56


def test_what_is_safe_already_counts_for_the_share() -> None:
    plan = walk([Target(1, 64 * MIB, 63 * MIB), Target(2, 64 * MIB, 63 * MIB)])
    for _ in range(60):
        plan.held_elsewhere(MIB)
    assert feed(plan, 4) == [] and plan.left_objects == 4


def test_a_target_that_says_it_is_full_gets_nothing_more_for_free() -> None:
    plan = walk([Target(1, 64 * MIB, 0), Target(2, 64 * MIB, 32 * MIB)], may_evict=False)
    plan.target_is_full(1)
    assert {order.target for order in feed(plan, 16)} == {2}


def test_nowhere_to_go() -> None:
    plan = walk([])
    assert feed(plan, 3) == [] and plan.left_objects == 3


def test_an_order_is_of_one_namespace_and_hands_out_what_is_full() -> None:
    plan = walk([Target(1, 64 * MIB, 0)])
    for i in range(20):
        plan.only_here(NS if i % 2 else b"another1", page(i), 1000)
    assert plan.take() == []
    orders = plan.take(rest=True)
    assert sorted((order.ns, len(order.fingerprints)) for order in orders) == [(b"another1", 10), (NS, 10)]
    for i in range(16):
        plan.only_here(NS, page(i), 1000)
    (order,) = plan.take()
    assert order.fingerprints == [page(i) for i in range(16)]
    assert plan.take(rest=True) == []


@pytest.mark.parametrize(("used", "share"), [(0, 1.0), (63, 0.5), (31, 0.66)])
def test_the_share_that_there_is_room_for(used: int, share: float) -> None:
    assert kept_share(64 * MIB, [(64 * MIB, used * MIB)]) == pytest.approx(share, abs=0.02)
