"""The master is killed or hangs while clients put and get."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvstore_client import Client
from support import pages
from support.processes import Cluster
from support.verify import assert_all_readable
from support.waiting import wait_until
from support.workers import Worker, assert_unharmed


def test_a_killed_master_loses_nothing_that_was_acked_and_service_resumes_unattended(
    cluster: Cluster, start_worker: Callable[..., Worker], connect: Callable[..., Client]
) -> None:
    cluster.start_segment()
    workers = [start_worker("same-host", seed=1), start_worker("tcp", seed=2, same_host=False)]
    for _ in range(2):
        for worker in workers:
            worker.wait_progress("before the kill")
        cluster.master.kill()
        time.sleep(1.0)  # how long the master is away: long enough for calls to run into it
        cluster.start_master()
        for worker in workers:
            worker.wait_progress("after the restart")
    reports = [worker.finish() for worker in workers]
    for report in reports:
        assert_unharmed(report)
        assert report["hits"] > 0
    acked = [key for worker in workers for key in worker.acked]
    assert_all_readable(connect().namespace("chaos"), acked)


def test_pages_that_a_client_has_pinned_are_read_while_the_master_is_dead(
    cluster: Cluster, start_worker: Callable[..., Worker], connect: Callable[..., Client]
) -> None:
    cluster.start_segment()
    worker = start_worker("w", pages_max=32)
    wait_until(lambda: len(worker.acked) == 32, "the pages are stored")
    assert_unharmed(worker.finish())
    namespace = connect().namespace("chaos")
    assert namespace.batch_exists(worker.acked, pin_ms=30_000) == [True] * 32
    cluster.master.kill()
    memory = [bytearray(pages.PAGE_BYTES) for _ in worker.acked]
    assert namespace.batch_get_into(worker.acked, memory) == [True] * 32
    assert [pages.fault(key, page) for key, page in zip(worker.acked, memory, strict=True)] == [""] * 32
    # Reads that have to be told the length, too.
    found = namespace.batch_get(worker.acked)
    assert [pages.fault(key, page or b"") for key, page in zip(worker.acked, found, strict=True)] == [""] * 32


def test_a_hung_master_costs_no_call_more_than_its_deadline_and_is_used_again_when_it_goes_on(
    cluster: Cluster, start_worker: Callable[..., Worker], connect: Callable[..., Client]
) -> None:
    cluster.start_segment()
    worker = start_worker("w", deadline_ms=500)
    worker.wait_progress("before the stop")
    cluster.master.pause()
    time.sleep(3.0)  # how long it hangs: several deadlines
    cluster.master.resume()
    worker.wait_progress("after it went on")
    report = worker.finish()
    assert_unharmed(report)
    assert_all_readable(connect().namespace("chaos"), worker.acked)


def test_a_master_that_is_away_at_start_is_waited_for_by_segment_and_client(
    cluster: Cluster, start_worker: Callable[..., Worker], connect: Callable[..., Client]
) -> None:
    cluster.master.kill()
    segment = cluster.start_segment(wait=False)
    segment.wait_event("listening")
    worker = start_worker("w", pages_max=64)
    cluster.start_master()
    segment.wait_event("attached")
    worker.wait_progress("once there is a master")
    assert_unharmed(worker.finish())
    assert_all_readable(connect().namespace("chaos"), worker.acked)
