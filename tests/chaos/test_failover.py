"""Masters and etcd members are killed, stopped and restarted while clients put and get."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore_client import Client
from support.etcd_server import Etcd
from support.replicated_cluster import ReplicatedCluster
from support.verify import assert_all_readable
from support.waiting import wait_until
from support.workers import Worker, assert_unharmed

TTL_S = 3.0
DEADLINE_MS = 1000


class Store:
    """etcd, two masters, one segment, and client processes."""

    def __init__(self, directory: Path, members: int) -> None:
        self.etcd = Etcd(directory / "etcd", members)
        self.cluster = ReplicatedCluster(directory, self.etcd.uri(ttl_s=TTL_S))
        self.workers: list[Worker] = []

    def start(self) -> Store:
        self.etcd.start()
        self.cluster.start()
        self.cluster.start_segment()
        return self

    def start_worker(self, name: str, **options: Any) -> Worker:
        worker = Worker(
            self.cluster.masters,
            name,
            **{"deadline_ms": DEADLINE_MS, "pages_max": 4000, **options},
        )
        self.workers.append(worker)
        return worker

    def assert_nothing_lost(self) -> None:
        acked = []
        for worker in self.workers:
            assert_unharmed(worker.finish())
            acked += worker.acked
        client = Client(self.cluster.masters, deadline_ms=2000)
        try:
            assert_all_readable(client.namespace("chaos"), acked)
        finally:
            client.close()

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        print(self.cluster.logs())  # pytest shows it when the test fails
        self.cluster.close()
        self.etcd.close()


@pytest.fixture
def make_store(tmp_path: Path) -> Iterator[Callable[[int], Store]]:
    stores: list[Store] = []

    def make(members: int = 1) -> Store:
        stores.append(Store(tmp_path, members))
        return stores[-1].start()

    yield make
    for store in stores:
        store.close()


def test_a_killed_leader_loses_nothing_that_was_acked_and_the_standby_takes_over_unattended(
    make_store: Callable[..., Store],
) -> None:
    store = make_store()
    workers = [store.start_worker("same-host", seed=1), store.start_worker("tcp", seed=2, same_host=False)]
    for worker in workers:
        worker.wait_progress("before the kill")
    leader = store.cluster.leader()
    hits_before = len(workers[0].acked)
    leader.process.kill()
    killed_at = time.monotonic()
    store.cluster.leader(but_not=leader)
    led_after_s = time.monotonic() - killed_at
    # What was on its way when the leader died may still be counted, so progress is what comes after the election.
    for worker in workers:
        worker.wait_progress("after the fail-over", pages=8)
    print(
        f"fail-over: a new leader after {led_after_s:.2f} s, writes resumed after "
        f"{time.monotonic() - killed_at:.2f} s (TTL {TTL_S:g} s)"
    )
    assert len(workers[0].acked) > hits_before
    store.assert_nothing_lost()


def test_a_leader_that_hangs_past_its_lease_comes_back_as_a_standby_and_writes_nothing(
    make_store: Callable[..., Store],
) -> None:
    store = make_store()
    worker = store.start_worker("w")
    worker.wait_progress("before the stop")
    old = store.cluster.leader()
    old.process.pause()
    new = store.cluster.leader(but_not=old)
    worker.wait_progress("under the new leader")
    old.process.resume()
    wait_until(old.follows, "the old leader follows", 15.0)
    assert new.leads()
    assert old.metrics()["is_leader"] == 0
    worker.wait_progress("after the old leader came back")
    store.assert_nothing_lost()


@pytest.mark.parametrize("fault", ["dies", "hangs"])
def test_an_etcd_member_that_fails_leaves_one_leader_and_service_resumes(
    make_store: Callable[..., Store], fault: str
) -> None:
    store = make_store(members=3)
    worker = store.start_worker("w")
    worker.wait_progress("before the fault")
    # The hardest one: all writes go through the raft leader.
    member = next(member for member in store.etcd.members if member.is_raft_leader())
    failed_at = time.monotonic()
    member.kill() if fault == "dies" else member.pause()
    worker.wait_progress("without the member")
    print(f"etcd member {fault}: writes resumed after {time.monotonic() - failed_at:.2f} s")
    wait_until(
        lambda: sorted(master.leads() for master in store.cluster.all_masters) == [False, True],
        "one master leads",
    )
    member.start() if fault == "dies" else member.resume()
    worker.wait_progress("with the member again")
    store.cluster.wait_formed()
    store.assert_nothing_lost()


def test_a_rolling_restart_of_both_masters_goes_unnoticed_but_for_some_refused_puts(
    make_store: Callable[..., Store],
) -> None:
    store = make_store()
    worker = store.start_worker("w")
    for master in store.cluster.all_masters:
        worker.wait_progress(f"before {master.name} is restarted")
        assert master.process.stop() == 0
        master.start()
        master.wait_listening()
        # As a rolling update does: the next one only when this one is ready.
        store.cluster.wait_formed()
        worker.wait_progress(f"after {master.name} was restarted")
    store.assert_nothing_lost()
