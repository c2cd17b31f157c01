"""Where the pages of one writer go in a store of many segments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore_client import Client, Namespace
from support.processes import Cluster, segment_metrics

MIB = 1 << 20
CAPACITY_MIB = 16
SEGMENTS = 10
PAGES = 16  # of a put, a MiB in all
# Long enough for what a master knows of a segment between its reports to matter.
HEARTBEATS = ("--heartbeat-interval-ms=3000",)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Cluster]:
    """Ten small segments; the writer shares a host with `home` alone: the others have no socket for it."""
    cluster = Cluster(tmp_path, capacity=f"{CAPACITY_MIB}MiB")
    try:
        cluster.start_master(HEARTBEATS)
        cluster.start_segment("home", wait=False)
        for number in range(1, SEGMENTS):
            cluster.start_segment(f"other {number}", options=("--unix-path=off",), wait=False)
        for segment in cluster.segments.values():
            segment.wait_event("attached")
        yield cluster
    finally:
        cluster.close()
        print(cluster.logs())


def put_mebibytes(namespace: Namespace, first: int, count: int) -> None:
    for number in range(first, first + count):
        keys = [f"{number} {page}" for page in range(PAGES)]
        assert all(namespace.batch_put(keys, [key.encode().ljust(65_536) for key in keys]))


def used_bytes(cluster: Cluster) -> dict[str, float]:
    return {name: segment_metrics(segment)["used_bytes"] for name, segment in cluster.segments.items()}


def evicted(cluster: Cluster) -> float:
    return sum(segment_metrics(segment)["evicted_objects"] for segment in cluster.segments.values())


def test_one_writer_fills_the_whole_store_before_any_page_of_it_is_evicted_and_a_newcomer_gets_its_share(
    store: Cluster,
) -> None:
    with Client(store.masters, deadline_ms=5000) as client:
        namespace = client.namespace("spread")
        put_mebibytes(namespace, 0, 8)
        at_home = used_bytes(store)
        assert at_home.pop("home") == pytest.approx(8 * MIB, rel=0.1), "home while it has room"
        assert not any(at_home.values())

        put_mebibytes(namespace, 8, 52)
        store.start_segment("newcomer", options=("--unix-path=off",))
        put_mebibytes(namespace, 60, 30)
        share = used_bytes(store)["newcomer"] / (30 * MIB)
        assert share <= 2 / (SEGMENTS + 1) * 1.5, "twice its fair share, and the luck of thirty draws"

        put_mebibytes(namespace, 90, 20)  # 110 of 176
        assert evicted(store) == 0
        used = used_bytes(store)
        assert max(used.values()) <= 0.9 * CAPACITY_MIB * MIB
        del used["newcomer"]
        assert min(used.values()) >= 0.2 * CAPACITY_MIB * MIB, used
        found = namespace.batch_exists([f"{number} {page}" for number in range(110) for page in range(PAGES)])
        assert all(found)
