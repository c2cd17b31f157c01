"""Masters and etcd members are killed, stopped and restarted while clients put and get."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore_client import Client
from support.etcd_server import Etcd
from support.replicated_cluster import Master, ReplicatedCluster
from support.verify import assert_all_readable
from support.waiting import wait_until
from support.workers import Worker, assert_unharmed

TTL_S = 3.0
DEADLINE_MS = 1000
PAGE_BYTES = 4096  # small, so that nothing is ever evicted


class Store:
    """etcd, two masters, one segment, and the client processes of one test after the other."""

    def __init__(self, directory: Path, members: int) -> None:
        self.etcd = Etcd(directory / "etcd", members)
        self.cluster = ReplicatedCluster(directory, self.etcd.uri(ttl_s=TTL_S))
        self.workers: list[Worker] = []
        self._workers_started = 0

    def start(self) -> None:
        self.etcd.start()
        self.cluster.start()
        self.cluster.start_segment()

    def start_worker(self, **options: Any) -> Worker:
        """A client that puts pages of its own, slowly, and gets them."""
        self._workers_started += 1
        values = {"deadline_ms": DEADLINE_MS, "pages_max": 20_000, "page_bytes": PAGE_BYTES, **options}
        worker = Worker(self.cluster.masters, f"worker{self._workers_started}", **values)
        self.workers.append(worker)
        return worker

    def assert_nothing_lost(self) -> None:
        """What the workers of this test were told is stored is there, and none of them was harmed."""
        acked = []
        for worker in self.workers:
            assert_unharmed(worker.finish())
            acked += worker.acked
        client = Client(self.cluster.masters, deadline_ms=2000)
        try:
            assert_all_readable(client.namespace("chaos"), acked, size_bytes=PAGE_BYTES)
        finally:
            client.close()

    def end_test(self) -> None:
        for worker in self.workers:
            worker.close()
        self.workers.clear()
        print(self.cluster.logs())  # pytest shows it when the test fails

    def close(self) -> None:
        self.cluster.close()
        self.etcd.close()


def _running(directory: Path, members: int) -> Iterator[Store]:
    store = Store(directory, members)
    try:
        store.start()
        yield store
    finally:
        store.close()


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    yield from _running(tmp_path_factory.mktemp("one"), members=1)


@pytest.fixture(scope="module")
def shared_store_of_three_members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    yield from _running(tmp_path_factory.mktemp("three"), members=3)


@pytest.fixture
def store(shared_store: Store) -> Iterator[Store]:
    """With one leader and one ready standby, whatever the test before did."""
    shared_store.cluster.wait_formed()
    yield shared_store
    shared_store.end_test()


@pytest.fixture
def store_of_three_members(shared_store_of_three_members: Store) -> Iterator[Store]:
    shared_store_of_three_members.cluster.wait_formed()
    yield shared_store_of_three_members
    shared_store_of_three_members.end_test()


@pytest.mark.alone
def test_a_killed_leader_loses_nothing_that_was_acked_and_the_standby_takes_over_unattended(
    store: Store,
) -> None:
    workers = [store.start_worker(seed=1), store.start_worker(seed=2, same_host=False)]
    for worker in workers:
        worker.wait_progress("before the kill")
    reader = Client(store.cluster.masters, deadline_ms=DEADLINE_MS)
    known = reader.namespace("chaos")
    early = workers[0].acked[:8] + workers[1].acked[:8]
    assert all(known.batch_exists(early))
    leader = store.cluster.leader()
    leader.process.kill()
    killed_at = time.monotonic()
    reads = 0
    while not (store.cluster.all_masters[0].leads() or store.cluster.all_masters[1].leads()):
        # The standby answers all the while.
        assert all(known.batch_exists(early)), f"after {time.monotonic() - killed_at:.2f} s"
        reads += 1
        assert time.monotonic() - killed_at < 5 * TTL_S, "no new leader"
    led_after_s = time.monotonic() - killed_at
    reader.close()
    assert reads > 0
    # What was on its way when the leader died may still be counted, so progress is what comes after the election.
    for worker in workers:
        worker.wait_progress("after the fail-over", pages=8)
    print(
        f"fail-over: a new leader after {led_after_s:.2f} s, writes resumed after "
        f"{time.monotonic() - killed_at:.2f} s (TTL {TTL_S:g} s); {reads} reads answered without a leader"
    )
    leader.start()
    store.cluster.wait_formed()
    store.assert_nothing_lost()


def test_a_leader_that_hangs_past_its_lease_comes_back_as_a_standby_and_writes_nothing(
    store: Store,
) -> None:
    worker = store.start_worker()
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
    store_of_three_members: Store, fault: str
) -> None:
    store = store_of_three_members
    worker = store.start_worker()
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
    store: Store,
) -> None:
    worker = store.start_worker()
    for master in store.cluster.all_masters:
        worker.wait_progress(f"before {master.name} is restarted")
        assert master.process.stop() == 0
        master.start()
        master.wait_listening()
        # As a rolling update does: the next one only when this one is ready.
        store.cluster.wait_formed()
        worker.wait_progress(f"after {master.name} was restarted")
    store.assert_nothing_lost()


def test_without_a_majority_of_etcd_reads_go_on_and_everything_comes_back_unattended(
    store_of_three_members: Store,
) -> None:
    store = store_of_three_members
    worker = store.start_worker()
    worker.wait_progress("before the fault")
    early = worker.acked[:8]
    readers = [
        Client(f"127.0.0.1:{master.directory_port}", deadline_ms=DEADLINE_MS)
        for master in store.cluster.all_masters
    ]
    known = [reader.namespace("chaos") for reader in readers]
    assert all(all(each.batch_exists(early)) for each in known)
    killed = store.etcd.members[:2]
    for member in killed:
        member.kill()
    killed_at = time.monotonic()
    reads = 0
    # Past the end of the lease, so that nobody leads any more.
    while time.monotonic() - killed_at < 2 * TTL_S:
        for each, master in zip(known, store.cluster.all_masters, strict=True):
            assert all(each.batch_exists(early)), f"{master.name} after {time.monotonic() - killed_at:.2f} s"
            reads += 1
    assert not any(master.leads() for master in store.cluster.all_masters)
    assert not known[0].put("without", bytes(PAGE_BYTES)), "nothing can be durable now"
    for member in killed:
        member.start()
    store.cluster.wait_formed()
    worker.wait_progress("with a majority again")
    print(f"{reads} reads without a majority of etcd")
    for reader in readers:
        reader.close()
    store.assert_nothing_lost()


@pytest.mark.alone
def test_an_etcd_that_comes_back_empty_is_noticed_by_leader_and_standby_alike(tmp_path: Path) -> None:
    store = Store(tmp_path, members=1)
    (member,) = store.etcd.members
    try:
        store.etcd.start()
        store.cluster.start()
        for number in range(1000):  # revisions, more than the new one soon has
            member.put(b"elsewhere/%d" % number, b"-")
        client = Client(store.cluster.masters, deadline_ms=2000)
        client.namespace("before").exists("a page")
        client.close()
        for master in store.cluster.all_masters:
            wait_until(lambda m=master: m.metrics()["namespaces"] >= 1, f"{master.name} has heard of it")
        member.kill()
        shutil.rmtree(tmp_path / "etcd" / member.name)
        member.start()

        def loaded_again(master: Master) -> bool:
            return master.process.log().count("directory_loaded") >= 2

        for master in store.cluster.all_masters:
            wait_until(lambda m=master: loaded_again(m), f"{master.name} has loaded what there is now", 40)
        store.cluster.wait_formed()
    finally:
        store.close()
