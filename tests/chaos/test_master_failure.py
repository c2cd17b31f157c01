"""The master is killed or hangs while clients put and get."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore_client import Client
from kvstore_client.keys import string_key_hashes
from kvstore_client.protocol import Op, Status
from support import pages
from support.processes import Cluster, segment_metrics
from support.raw_client import RawClient
from support.verify import assert_all_readable
from support.waiting import BUSY_S, wait_until
from support.wire import STRING_POOL, WHOLE_SHARD, KeyBlock, RemoveRequest, StatusesReply
from support.workers import Worker, assert_unharmed

PIN_MS = 100


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


@pytest.mark.parametrize("same_host", [True, False])
def test_hot_pages_are_read_on_for_as_long_as_the_only_master_is_dead_and_nothing_else_takes_time(
    cluster: Cluster, connect: Callable[..., Client], same_host: bool
) -> None:
    segment = cluster.start_segment()
    client = connect(same_host=same_host, deadline_ms=5000)
    namespace = client.namespace("hot")
    put_here, read_here = [f"put-{i}" for i in range(16)], [f"read-{i}" for i in range(16)]
    values = {key: pages.content(key) for key in put_here + read_here}
    assert all(namespace.batch_put(put_here, [values[key] for key in put_here]))
    other = connect(same_host=same_host).namespace("hot")
    assert all(other.batch_put(read_here, [values[key] for key in read_here]))
    assert namespace.batch_get(read_here) == [values[key] for key in read_here]
    hot = put_here + read_here
    assert namespace.batch_exists(hot, pin_ms=PIN_MS) == [True] * len(hot)

    cluster.master.kill()
    slowest_s = 0.0
    ends_at = time.monotonic() + 30 * PIN_MS / 1000  # no pin of before the kill holds any more
    while time.monotonic() < ends_at:
        memory = [bytearray(pages.PAGE_BYTES) for _ in hot]
        assert namespace.batch_get_into(hot, memory) == [True] * len(hot)
        assert [bytes(page) for page in memory] == [values[key] for key in hot]
        assert namespace.batch_exists(hot, pin_ms=PIN_MS) == [True] * len(hot)
        assert namespace.batch_exists(hot, pin_ms=0) == [True] * len(hot)
        began = time.monotonic()
        assert not namespace.put("new", b"a page that nobody has")
        assert not namespace.exists("new", pin_ms=PIN_MS)
        assert namespace.get("new") is None
        slowest_s = max(slowest_s, time.monotonic() - began)
    assert slowest_s < 1.0, (
        "a put, an exists and a get that need a master fail long before their deadline of 5 s"
    )
    stats = client.stats()
    assert stats["locations_without_directory"] > 0
    assert any("master" in peer for peer in stats["troubles"])

    gone = hot[0]
    with RawClient(segment.wait_event("listening")["port"]) as raw:
        keys = KeyBlock(
            bytes.fromhex(namespace.namespace_id), STRING_POOL, (WHOLE_SHARD,), (string_key_hashes([gone]),)
        )
        prefix, fields, _ = raw.call(Op.REMOVE, RemoveRequest(keys, ack_committed=False).encode())
        assert (prefix.status, StatusesReply.decode(fields).statuses) == (Status.OK, bytes([Status.OK]))
    assert namespace.batch_exists(hot, pin_ms=PIN_MS) == [False] + [True] * (len(hot) - 1)
    assert namespace.batch_exists(hot, pin_ms=0) == [False] + [True] * (len(hot) - 1)
    assert not namespace.get_into(gone, bytearray(pages.PAGE_BYTES))

    cluster.start_master()
    wait_until(lambda: namespace.put("new", b"a page that nobody has"), "puts work again")
    assert namespace.get("new") == b"a page that nobody has"
    assert namespace.batch_exists(hot) == [False] + [True] * (len(hot) - 1)


def test_a_master_that_comes_back_without_its_records_wipes_no_pool_and_with_them_finds_every_page(
    cluster: Cluster,
    start_worker: Callable[..., Worker],
    connect: Callable[..., Client],
    tmp_path: Path,
) -> None:
    segment = cluster.start_segment()
    worker = start_worker("w", pages_max=32)
    wait_until(lambda: len(worker.acked) == 32, "the pages are stored")
    assert_unharmed(worker.finish())
    cluster.master.kill()
    records, aside = tmp_path / "master", tmp_path / "aside"
    records.rename(aside)
    cluster.start_master()
    wait_until(lambda: segment_metrics(segment)["control_clusters_refused"] >= 2, "it is refused")
    assert "another_cluster" in segment.log() and "--adopt-cluster" in segment.log()
    assert segment_metrics(segment)["object_count"] == 32
    cluster.master.kill()
    records.rename(tmp_path / "of_the_empty_master")
    aside.rename(records)
    cluster.start_master()
    assert_all_readable(connect().namespace("chaos"), worker.acked)


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


@pytest.mark.alone
def test_a_segment_whose_master_hangs_ends_within_two_seconds_of_sigterm(cluster: Cluster) -> None:
    segment = cluster.start_segment()
    cluster.master.pause()
    started = time.monotonic()
    assert segment.stop() == 0
    assert time.monotonic() - started < 2.0 + BUSY_S
    cluster.master.resume()
