"""Somebody takes the memory of a pool, or its name, away while a segment and its clients have it mapped."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvstore_client import Client
from support import pages
from support.pool_files import pool_directory
from support.processes import Cluster, segment_metrics
from support.verify import assert_all_readable, readable
from support.waiting import wait_until
from support.workers import Worker, assert_unharmed


@pytest.fixture
def pool() -> Iterator[Path]:
    with pool_directory() as directory:
        yield directory / "pool"


def make_shorter(pool: Path) -> None:
    os.truncate(pool, pool.stat().st_size // 8)


def punch_a_hole(pool: Path) -> None:
    half = pool.stat().st_size // 8192 * 4096
    subprocess.run(
        ["fallocate", "--punch-hole", "--offset=4096", f"--length={half}", pool], check=True, timeout=30
    )


@pytest.mark.parametrize("how", [make_shorter, punch_a_hole])
def test_a_segment_that_lost_memory_of_its_pool_says_so_ends_and_begins_anew_and_clients_live(
    cluster: Cluster,
    pool: Path,
    start_worker: Callable[..., Worker],
    connect: Callable[..., Client],
    how: Callable[[Path], None],
) -> None:
    option = (f"--pool-path={pool}",)
    segment = cluster.start_segment(options=option)
    # Both copy pages out of their own maps of the pool, or have the segment do it.
    workers = [start_worker("same-host", seed=1), start_worker("tcp", seed=2, same_host=False)]
    for worker in workers:
        worker.wait_progress("before")
    lost = [key for worker in workers for key in worker.acked]
    how(pool)
    code = segment.process.wait(30)
    if (
        how is make_shorter and code == -signal.SIGBUS
    ):  # it touched what was gone before it had looked after it
        assert f"of the pool {pool} is gone (SIGBUS): its file was made shorter" in segment.log()
    else:
        assert code == 1
        assert '"pool_lost"' in segment.log() and "kvstore: the pool file" in segment.log()
        assert not pool.exists(), "what is left of it would be of no use"
    pool_id = segment.wait_event("listening")["pool_id"]
    segment = cluster.start_segment(options=option)
    assert segment.wait_event("listening")["pool_id"] != pool_id
    for worker in workers:
        worker.wait_progress("after the restart")
        assert_unharmed(worker.finish())
    assert readable(connect().namespace("chaos"), lost) == set()


def test_a_pool_that_was_made_shorter_while_no_process_had_it_is_replaced(
    cluster: Cluster, pool: Path, connect: Callable[..., Client]
) -> None:
    option = (f"--pool-path={pool}",)
    segment = cluster.start_segment(options=option)
    assert connect().namespace("chaos").put("page", pages.content("page"))
    assert segment.stop() == 0
    make_shorter(pool)
    segment = cluster.start_segment(options=option)
    assert "somebody has made it shorter" in segment.log()
    namespace = connect().namespace("chaos")
    assert readable(namespace, ["page"]) == set()
    assert wait_until(lambda: namespace.put("page", pages.content("page")), "it is stored again")


def test_a_segment_whose_pool_file_was_removed_serves_on_and_says_that_its_memory_ends_with_it(
    cluster: Cluster, pool: Path, connect: Callable[..., Client]
) -> None:
    segment = cluster.start_segment(options=(f"--pool-path={pool}",))
    keys = [f"page-{i}" for i in range(16)]
    namespace = connect().namespace("chaos")
    assert all(namespace.batch_put(keys, [pages.content(key) for key in keys]))
    pool.unlink()
    wait_until(lambda: '"pool_not_kept"' in segment.log(), "it is said")
    assert segment_metrics(segment)["pool_kept"] == 0
    assert_all_readable(namespace, keys)
    assert_all_readable(connect().namespace("chaos"), keys)  # one that maps it only now
    assert segment.stop() == 0
    assert '"pool_kept": "no"' in segment.log()
