"""A segment ends, in whatever way, and another process goes on with its pool: what was acked is served again, what went bad
meanwhile is not, and the directory is told only what it does not know."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvstore_client import Client
from kvstore_client.keys import string_key_hashes
from support import pages
from support.pool_files import FORMAT_OFFSET, HASH_OFFSET, SHARD_OFFSET, flip_bit, pool_directory, write_over
from support.processes import Cluster, ServerProcess, segment_metrics
from support.verify import assert_all_readable, readable
from support.waiting import wait_until
from support.workers import Worker, assert_unharmed


class WarmSegment:
    """One segment whose pool outlives its processes."""

    def __init__(self, cluster: Cluster, pools: Path, name: str = "segment") -> None:
        self._cluster, self._name = cluster, name
        self.pool = pools / name
        self.process = self.start()

    def start(self, *options: str, wait: bool = True) -> ServerProcess:
        self.process = self._cluster.start_segment(
            self._name, options=(f"--pool-path={self.pool}", *options), wait=wait
        )
        return self.process

    def end(self, how: str) -> None:
        if how == "kill":
            self.process.kill()
        else:
            assert self.process.stop() == 0

    def metric(self, name: str) -> float:
        return segment_metrics(self.process)[name]

    def assert_nothing_was_announced_anew(self) -> None:
        assert self.metric("control_inventories_sent") == 0, self.process.log()
        assert self.metric("control_journal_gaps") == 0


@pytest.fixture
def pools() -> Iterator[Path]:
    with pool_directory() as directory:
        yield directory


@pytest.fixture
def segment(cluster: Cluster, pools: Path) -> WarmSegment:
    return WarmSegment(cluster, pools)


def start_refused(segment: WarmSegment, *options: str) -> str:
    """What a process says that does not start."""
    process = segment.start(*options, wait=False)
    assert process.process.wait(60) != 0
    return process.log()


@pytest.mark.parametrize("how", ["kill", "sigterm"])
def test_what_was_acked_is_served_again_and_nothing_is_announced_anew(
    cluster: Cluster,
    segment: WarmSegment,
    start_worker: Callable[..., Worker],
    connect: Callable[..., Client],
    how: str,
) -> None:
    workers = [start_worker("same-host", seed=1), start_worker("tcp", seed=2, same_host=False)]
    listening = segment.process.wait_event("listening")
    for _ in range(3):
        for worker in workers:
            worker.wait_progress("before the end")
        segment.end(how)
        assert segment.pool.exists()
        segment.start()
        segment.assert_nothing_was_announced_anew()
        for worker in workers:
            worker.wait_progress("after the start")
    assert segment.process.wait_event("listening")["pool_id"] == listening["pool_id"]
    for worker in workers:
        assert_unharmed(worker.finish())
    acked = [key for worker in workers for key in worker.acked]
    segment.end(how)
    segment.start()
    for same_host in (True, False):
        assert_all_readable(connect(same_host=same_host).namespace("chaos"), acked)
    segment.assert_nothing_was_announced_anew()
    assert '"pool_adopted"' in segment.process.log() and "gb_per_s" in segment.process.log()
    assert '"journal_gap"' not in cluster.master.log()


def test_pages_and_headers_that_went_bad_meanwhile_are_misses_and_the_directory_hears_of_it(
    segment: WarmSegment, connect: Callable[..., Client]
) -> None:
    keys = [f"page-{i}" for i in range(40)]
    assert all(connect().namespace("chaos").batch_put(keys, [pages.content(key) for key in keys]))
    segment.end("sigterm")
    flip_bit(segment.pool, pages.content("page-3")[100:200], 5000)
    flip_bit(segment.pool, pages.content("page-4")[-200:], 199)
    segment.start()
    segment.assert_nothing_was_announced_anew()
    namespace = connect().namespace("chaos")
    wait_until(lambda: not namespace.exists("page-3"), "the directory forgets the page")
    assert readable(namespace, keys) == set(keys) - {"page-3", "page-4"}
    assert "dropped_bad_bytes" in segment.process.log()
    # Nobody can say which page this was: all that is there is announced, and what is not is forgotten.
    segment.end("kill")
    flip_bit(segment.pool, string_key_hashes(["page-5"]), SHARD_OFFSET - HASH_OFFSET)
    segment.start()
    assert "dropped_damaged" in segment.process.log()
    namespace = connect(same_host=False).namespace("chaos")
    wait_until(lambda: not namespace.exists("page-5"), "the directory forgets the page")
    assert readable(namespace, keys) == set(keys) - {"page-3", "page-4", "page-5"}
    assert segment.metric("control_inventories_sent") == 1
    for key in ("page-3", "page-4", "page-5"):
        assert wait_until(lambda key=key: namespace.put(key, pages.content(key)), "it is stored again")
    assert readable(namespace, keys) == set(keys)


def test_an_older_content_of_the_same_pool_is_announced_as_a_whole(
    segment: WarmSegment, connect: Callable[..., Client]
) -> None:
    namespace = connect().namespace("chaos")
    early, late = [f"early-{i}" for i in range(8)], [f"late-{i}" for i in range(8)]
    assert all(namespace.batch_put(early, [pages.content(key) for key in early]))
    segment.end("sigterm")
    older = segment.pool.read_bytes()
    segment.start()
    assert all(namespace.batch_put(late, [pages.content(key) for key in late]))
    segment.end("kill")
    write_over(segment.pool, older)  # the directory has more of its journal than it has itself
    segment.start()
    namespace = connect().namespace("chaos")
    wait_until(lambda: not any(namespace.batch_exists(late)), "the directory forgets what is not there")
    assert readable(namespace, early + late) == set(early)
    assert segment.metric("control_inventories_sent") == 1


def test_nothing_is_served_before_a_master_has_said_what_is_current(
    cluster: Cluster, segment: WarmSegment, connect: Callable[..., Client]
) -> None:
    client = connect(deadline_ms=500)
    namespace = client.namespace("chaos")
    assert namespace.put("page", pages.content("page"))
    assert namespace.batch_exists(["page"]) == [True]
    port = segment.process.wait_event("listening")["port"]
    segment.end("kill")
    cluster.master.kill()
    segment.start(f"--port={port}", wait=False).wait_event("listening")
    for _ in range(20):
        assert namespace.get("page") is None, "its epoch may have ended meanwhile"
    cluster.start_master()
    wait_until(lambda: readable(namespace, ["page"]) == {"page"}, "it is served again", timeout_s=30)


@pytest.mark.timeout(300)
def test_what_was_kept_belongs_to_its_cluster_and_is_emptied_for_another_one_only_when_told_to(
    cluster: Cluster, segment: WarmSegment, connect: Callable[..., Client], tmp_path: Path
) -> None:
    keys = [f"page-{i}" for i in range(8)]
    assert all(connect().namespace("chaos").batch_put(keys, [pages.content(key) for key in keys]))
    segment.end("kill")
    cluster.master.kill()
    records, aside = tmp_path / "master", tmp_path / "aside"
    records.rename(aside)
    cluster.start_master()
    segment.start(wait=False).wait_event("listening")
    wait_until(lambda: segment.metric("control_clusters_refused") >= 1, "it passes that master over")
    assert segment.metric("object_count") == len(keys)
    segment.end("sigterm")
    cluster.master.kill()
    records.rename(tmp_path / "of_the_other_cluster")
    aside.rename(records)
    cluster.start_master()
    segment.start()
    assert_all_readable(connect().namespace("chaos"), keys)
    segment.end("sigterm")
    cluster.master.kill()
    records.rename(aside)
    (tmp_path / "of_the_other_cluster").rename(records)
    cluster.start_master()
    segment.start("--adopt-cluster")
    assert "cluster_adopted" in segment.process.log() and "it was to be emptied" in segment.process.log()
    assert readable(connect().namespace("chaos"), keys) == set()


def test_a_pool_of_another_size_or_release_or_process_is_refused_and_stays_as_it_is(
    cluster: Cluster, segment: WarmSegment, pools: Path, connect: Callable[..., Client], tmp_path: Path
) -> None:
    namespace = connect().namespace("chaos")
    assert namespace.put("page", pages.content("page"))
    other = WarmSegment.__new__(WarmSegment)
    other._cluster, other._name, other.pool = cluster, "other", segment.pool
    assert "in use by another process" in start_refused(other)
    assert readable(namespace, ["page"]) == {"page"}
    segment.end("sigterm")
    kept = segment.pool.read_bytes()
    assert "another segment" in start_refused(other)
    said = start_refused(segment, "--capacity=128MiB")
    assert "set capacity as it was" in said and "--empty-pool" in said
    # Another number, and other bytes behind it: the number alone is a cell that went bad.
    later = bytes([kept[FORMAT_OFFSET] + 1]) + bytes(15)
    write_over(segment.pool, kept[:FORMAT_OFFSET] + later)
    assert "a later release of kvstore has written it" in start_refused(segment)
    write_over(segment.pool, kept[: FORMAT_OFFSET + 16])
    assert segment.pool.read_bytes() == kept
    segment.start()
    assert_all_readable(connect().namespace("chaos"), ["page"])


def test_an_operator_empties_a_pool_and_a_pool_that_is_gone_is_said_to_be(
    segment: WarmSegment, connect: Callable[..., Client]
) -> None:
    client = connect()
    namespace = client.namespace("chaos")
    assert namespace.put("page", pages.content("page"))
    pool_id = segment.process.wait_event("listening")["pool_id"]
    segment.end("sigterm")
    segment.start("--empty-pool")
    assert segment.process.wait_event("listening")["pool_id"] != pool_id
    assert "it was to be emptied" in segment.process.log()
    # A client that has the old file mapped finds out.
    assert readable(namespace, ["page"]) == set()
    assert wait_until(lambda: namespace.put("page", pages.content("page")), "puts go on")
    assert readable(namespace, ["page"]) == {"page"}
    segment.end("kill")
    os.unlink(segment.pool)
    segment.start()
    assert "has been removed" in segment.process.log()
    assert readable(connect().namespace("chaos"), ["page"]) == set()
