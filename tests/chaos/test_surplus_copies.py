"""Copies that nobody asked for go, those that were asked for stay."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kvstore_client import Client
from support import pages
from support.copies import master_metric, object_counts, start_on
from support.processes import Cluster, segment_metrics
from support.running_cluster import paused
from support.waiting import wait_until

KEYS = [f"raced {i}" for i in range(48)]
SIZE_BYTES = 65_536
WITHIN_S = 60.0


def put_by_two_at_once(connect: Callable[..., Client], cluster: Cluster) -> int:
    """Puts KEYS by two clients that meet at each key; how many copies there are then."""
    meeting = threading.Barrier(2)

    def put_some(client: Client) -> None:
        namespace = client.namespace("chaos")
        for key in KEYS:
            meeting.wait(WITHIN_S)
            assert namespace.put(key, CONTENT[key])

    clients = [connect(same_host=False, location_cache_entries=0, deadline_ms=10_000) for _ in range(2)]
    threads = [threading.Thread(target=put_some, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(object_counts(cluster).values())


CONTENT = {key: pages.content(key, SIZE_BYTES) for key in KEYS}


def test_what_two_clients_put_at_once_is_left_in_one_copy_and_its_space_is_free(
    cluster: Cluster, connect: Callable[..., Client]
) -> None:
    for number in range(1, 4):
        start_on(cluster, f"segment {number}", f"127.0.0.{number}")
    copies = put_by_two_at_once(connect, cluster)
    wait_until(
        lambda: sum(object_counts(cluster).values()) == len(KEYS), "one copy is left of each", WITHIN_S
    )
    reader = connect(same_host=False, deadline_ms=10_000).namespace("chaos")
    for key in KEYS:
        assert reader.get(key) == CONTENT[key]
    dropped = sum(segment_metrics(segment)["dropped_objects"] for segment in cluster.segments.values())
    assert dropped >= max(1, copies - len(KEYS)), "on a slow machine some went before the last was put"
    wait_until(
        lambda: master_metric(cluster, "copies_trimmed_total") == dropped,
        "the master has counted what was dropped",
        WITHIN_S,
    )
    wait_until(
        lambda: master_metric(cluster, "index_entries") == len(KEYS), "the directory has one each", WITHIN_S
    )
    print(f"{dropped:g} copies too many of {len(KEYS)} pages were left by the race")


def test_copies_that_were_asked_for_stay_while_others_go(
    cluster: Cluster, connect: Callable[..., Client]
) -> None:
    start_on(cluster, "one", "127.0.0.1")
    asked_for = connect(same_host=False).namespace("asked for")
    others = connect(same_host=False, deadline_ms=500).namespace("others")
    for key in KEYS:
        assert others.put(key, CONTENT[key])
    start_on(cluster, "two", "127.0.0.2")
    for key in KEYS:
        assert asked_for.put(key, CONTENT[key], replicas=2)
    assert object_counts(cluster) == {"one": 2 * len(KEYS), "two": len(KEYS)}

    def is_put_again() -> bool:
        """Once `one` has been silent for a while, what it has does not count."""
        newcomer = connect(same_host=False, deadline_ms=500).namespace("others")
        newcomer.batch_put(KEYS, [CONTENT[key] for key in KEYS])
        return segment_metrics(cluster.segments["two"])["object_count"] == 2 * len(KEYS)

    with paused(cluster.segments["one"]):
        wait_until(is_put_again, "it is put at the other segment", WITHIN_S)
    wait_until(
        lambda: master_metric(cluster, "copies_trimmed_total") == len(KEYS), "they are trimmed", WITHIN_S
    )
    assert sum(object_counts(cluster).values()) == 3 * len(KEYS)
    reader = connect(same_host=False, deadline_ms=10_000)
    for name in ("asked for", "others"):
        for key, found in zip(KEYS, reader.namespace(name).batch_get(KEYS), strict=True):
            assert found == CONTENT[key], (name, key)
