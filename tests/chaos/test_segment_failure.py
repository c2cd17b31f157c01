"""A segment is killed or hangs while clients put and get."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from kvstore_client import Client
from support import pages
from support.processes import Cluster
from support.verify import assert_all_readable, readable
from support.workers import Worker, assert_unharmed


@pytest.mark.parametrize("same_port", [True, False], ids=["same-port", "another-port"])
def test_pages_of_a_killed_segment_are_misses_and_puts_go_on_when_it_is_back(
    cluster: Cluster, start_worker: Callable[..., Worker], connect: Callable[..., Client], same_port: bool
) -> None:
    segment = cluster.start_segment()
    port = segment.wait_event("listening")["port"]
    workers = [start_worker("same-host", seed=1), start_worker("tcp", seed=2, same_host=False)]
    for worker in workers:
        worker.wait_progress("before the kill")
    segment.kill()
    lost = [list(worker.acked) for worker in workers]
    segment = cluster.start_segment(port=port if same_port else 0)
    assert (segment.wait_event("listening")["port"] == port) == same_port
    for worker in workers:
        worker.wait_progress("after the restart")
    for worker in workers:
        assert_unharmed(worker.finish())
    after = [
        key for worker, before in zip(workers, lost, strict=True) for key in worker.acked[len(before) + 8 :]
    ]
    namespace = connect().namespace("chaos")
    assert_all_readable(namespace, after)
    gone = [key for keys in lost for key in keys]
    assert readable(namespace, gone) == set(), "the memory is new: none of its old pages can be there"
    # A key whose page is lost can be stored again.
    assert namespace.put(gone[0], pages.content(gone[0]))
    assert readable(namespace, gone[:1]) == {gone[0]}


def test_the_other_segments_serve_on_when_one_is_killed(
    cluster: Cluster, start_worker: Callable[..., Worker], connect: Callable[..., Client]
) -> None:
    cluster.start_segment("one")
    cluster.start_segment("two")
    # A small run size spreads each batch over both segments.
    worker = start_worker("w", same_host=False)
    worker.wait_progress("before the kill", pages=64)
    namespace = connect().namespace("chaos")
    before = list(worker.acked)
    assert_all_readable(namespace, before)
    cluster.segments["two"].kill()
    worker.wait_progress("on the segment that is left", pages=32)
    assert_unharmed(worker.finish())
    survivors = readable(connect().namespace("chaos"), worker.acked)
    after = worker.acked[len(before) + 32 :]
    assert survivors >= set(after)


def test_a_hung_segment_costs_no_call_more_than_its_deadline_and_its_late_bytes_do_no_harm(
    cluster: Cluster, start_worker: Callable[..., Worker], connect: Callable[..., Client]
) -> None:
    segment = cluster.start_segment()
    workers = [
        start_worker("same-host", seed=1, deadline_ms=500),
        start_worker("tcp", seed=2, deadline_ms=500, same_host=False),
    ]
    for worker in workers:
        worker.wait_progress("before the stop")
    for _ in range(2):
        segment.pause()
        time.sleep(1.5)  # how long it hangs: several deadlines
        segment.resume()
        for worker in workers:
            worker.wait_progress("after it went on")
    for worker in workers:
        assert_unharmed(worker.finish())
    assert_all_readable(connect().namespace("chaos"), [key for worker in workers for key in worker.acked])


@pytest.mark.alone
def test_a_segment_that_is_stopped_by_sigterm_leaves_the_map_at_once(
    cluster: Cluster, connect: Callable[..., Client]
) -> None:
    segment = cluster.start_segment()
    namespace = connect().namespace("chaos")
    assert namespace.put("k", pages.content("k"))
    assert segment.stop() == 0
    started = time.monotonic()
    assert connect().namespace("chaos").get("k") is None
    assert time.monotonic() - started < 1.0, (
        "a miss, at once: nobody has to find out that the segment is gone"
    )
