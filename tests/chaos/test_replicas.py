"""Pages with several copies: where these go, and what a reader notices when one of their holders is killed or hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from kvstore_client import Client, Namespace
from support import pages
from support.copies import master_metric, object_counts, start_on
from support.processes import Cluster
from support.waiting import wait_until

KEYS = [f"page {i}" for i in range(12)]
CONTENT = {key: pages.content(key) for key in KEYS}


def put_all(namespace: Namespace, keys: Sequence[str], replicas: int | None = None) -> None:
    for key in keys:  # one by one, so that each is placed for itself
        assert namespace.put(key, pages.content(key), replicas=replicas), key


def test_two_copies_of_a_page_lie_on_different_hosts(
    cluster: Cluster, connect: Callable[..., Client]
) -> None:
    start_on(cluster, "one", "127.0.0.1")
    start_on(cluster, "beside one", "127.0.0.1")
    start_on(cluster, "two", "127.0.0.2")
    client = connect(same_host=False, replicas=2)
    put_all(client.namespace("chaos"), KEYS)
    counts = object_counts(cluster)
    assert counts["two"] == len(KEYS)
    assert counts["one"] + counts["beside one"] == len(KEYS)
    assert client.stats()["put_copies"] == len(KEYS)
    assert client.stats()["put_copies_short"] == 0
    assert master_metric(cluster, "copies_beside_total") == 0


def test_on_a_single_host_copies_lie_on_different_segments_and_one_too_many_is_counted(
    cluster: Cluster, connect: Callable[..., Client]
) -> None:
    start_on(cluster, "one", "127.0.0.1")
    start_on(cluster, "beside one", "127.0.0.1")
    client = connect(same_host=False)
    put_all(client.namespace("chaos"), KEYS, replicas=2)
    assert object_counts(cluster) == {"one": len(KEYS), "beside one": len(KEYS)}
    assert master_metric(cluster, "copies_beside_total") == len(KEYS)
    assert client.namespace("chaos").put("three", pages.content("three"), replicas=3)
    assert client.stats()["put_copies_short"] == 1
    assert master_metric(cluster, "copies_short_total") == 1


def test_a_page_that_is_there_in_too_few_copies_gets_the_others_by_the_next_put(
    cluster: Cluster, connect: Callable[..., Client]
) -> None:
    start_on(cluster, "one", "127.0.0.1")
    namespace = connect(same_host=False).namespace("chaos")
    put_all(namespace, KEYS)
    start_on(cluster, "two", "127.0.0.2")
    put_all(namespace, KEYS)
    assert object_counts(cluster)["two"] == 0, "one is what was wanted"
    put_all(connect(same_host=False).namespace("chaos"), KEYS, replicas=2)
    assert object_counts(cluster) == {"one": len(KEYS), "two": len(KEYS)}


def test_a_put_has_worked_when_one_of_its_copies_is_stored(
    cluster: Cluster, connect: Callable[..., Client]
) -> None:
    start_on(cluster, "one", "127.0.0.1")
    start_on(cluster, "two", "127.0.0.2")
    client = connect(same_host=False, replicas=2, deadline_ms=5000)
    namespace = client.namespace("chaos")
    put_all(namespace, KEYS)
    cluster.segments["two"].kill()
    later = [f"later {key}" for key in KEYS]
    put_all(namespace, later)
    assert client.stats()["put_copies_short"] == len(later)
    for key in KEYS + later:
        assert pages.fault(key, namespace.get(key) or b"") == ""


class Reader:
    """Gets all keys again and again, on a thread of its own."""

    def __init__(self, namespace: Namespace, pin_ms: int = 0) -> None:
        self._namespace = namespace
        self._pin_ms = pin_ms
        self._stopping = threading.Event()
        self.rounds = 0
        self.faults: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._pin_ms:
                there = self._namespace.batch_exists(KEYS, pin_ms=self._pin_ms)
                self.faults += [
                    f"{key} is not pinned" for key, found in zip(KEYS, there, strict=True) if not found
                ]
            for key, found in zip(KEYS, self._namespace.batch_get(KEYS), strict=True):
                if found != CONTENT[key]:
                    self.faults.append(pages.fault(key, found or b""))
            self.rounds += 1

    def wait_rounds(self, more: int, when: str) -> None:
        goal = self.rounds + more
        wait_until(lambda: self.rounds >= goal, f"{more} rounds {when}", timeout_s=60)

    def finish(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("same_host", [False, True], ids=["tcp", "same-host"])
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_no_get_fails_when_one_of_two_holders_is_killed_or_hangs_in_mid_read(
    cluster: Cluster, connect: Callable[..., Client], how: str, same_host: bool
) -> None:
    start_on(cluster, "one", "127.0.0.1")
    start_on(cluster, "two", "127.0.0.2")
    put_all(connect(same_host=False).namespace("chaos"), KEYS, replicas=2)
    options = {"same_host": same_host, "deadline_ms": 10_000}
    readers = [Reader(connect(**options).namespace("chaos")) for _ in range(2)]
    readers.append(Reader(connect(**options).namespace("chaos"), pin_ms=1000))
    victim = cluster.segments["two"]
    try:
        for reader in readers:
            reader.wait_rounds(3, "before")
        for _ in range(1 if how == "killed" else 3):
            victim.kill() if how == "killed" else victim.pause()
            for reader in readers:
                reader.wait_rounds(5, "with one holder")
            if how == "stopped":
                victim.resume()
                for reader in readers:
                    reader.wait_rounds(2, "after it went on")
    finally:
        for reader in readers:
            reader.finish()
    assert [reader.faults for reader in readers] == [[], [], []]
