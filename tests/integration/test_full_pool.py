"""What a full pool does to those who put: a real master, a real segment, the public API."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore_client import Client, Namespace
from support.processes import segment_metrics
from support.running_cluster import running_cluster
from support.waiting import wait_until

MIB = 1 << 20
DEADLINE_MS = 120_000.0
COUNT = 100_000


def values(count: int, size: int) -> dict[str, bytes]:
    """`count` values of `size` bytes that say whose they are."""
    return {f"value {i}": f"{i:010}".encode() * (size // 10) for i in range(count)}


def store_of(client: Client, name: str) -> Namespace:
    return client.namespace(name)


@pytest.fixture(params=["tcp", "same_host"])
def options(request: pytest.FixtureRequest) -> dict[str, bool]:
    return {"same_host": request.param == "same_host"}


def test_very_many_very_small_values_of_one_batch_are_all_there_afterwards(
    tmp_path: Path, options: dict[str, bool]
) -> None:
    wanted = values(COUNT, 200)
    with (
        running_cluster(tmp_path, capacity="256MiB") as cluster,
        Client(cluster.masters, **options) as client,
    ):
        kv = store_of(client, "small values")
        stored = kv.batch_put(list(wanted), list(wanted.values()), deadline_ms=DEADLINE_MS)
        found = kv.batch_get(list(wanted), deadline_ms=DEADLINE_MS)
        metrics = segment_metrics(next(iter(cluster.segments.values())))
    assert stored == [True] * COUNT
    assert found == list(wanted.values())
    assert metrics["object_count"] == COUNT
    assert metrics["slots"] >= COUNT
    assert metrics["evicted_objects"] == 0


def test_of_a_batch_that_the_pool_has_no_room_for_what_is_acked_is_there(
    tmp_path: Path, options: dict[str, bool]
) -> None:
    wanted = values(2000, 40_000)  # 80 MB
    with running_cluster(tmp_path, capacity="32MiB") as cluster, Client(cluster.masters, **options) as client:
        kv = store_of(client, "large batch")
        before = values(500, 50_000)
        assert kv.batch_put([f"old {k}" for k in before], list(before.values()), deadline_ms=DEADLINE_MS)
        stored = kv.batch_put(list(wanted), list(wanted.values()), deadline_ms=20_000)
        found = kv.batch_get(list(wanted), deadline_ms=DEADLINE_MS)
        # A connection that had no part in the commit takes its next put for the batch's, once.
        wait_until(lambda: kv.put("next", b"there is room again", deadline_ms=DEADLINE_MS), "room again", 60)
    lost = [
        key for key, is_stored, value in zip(wanted, stored, found, strict=True) if is_stored and not value
    ]
    assert lost == []
    assert sum(stored) * 40_000 > 0.8 * 32 * MIB
    assert sum(stored) < len(stored)
