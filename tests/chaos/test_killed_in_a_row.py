"""A segment is killed again and again, a moment after it has come back, while clients put."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvstore_client import Client
from support.pool_files import pool_directory
from support.processes import Cluster, segment_metrics
from support.verify import assert_all_readable
from support.workers import Worker, assert_unharmed

KILLS = 8
KILLS_OF_MANY_ROUNDS = 20  # with --rounds, as `make test-long` has it
LONGEST_LIFE_S = 0.15
SMALL_PAGE = 4096
PAGES_MAX = 6000  # of each client: less than the pool has room for


@pytest.fixture
def pool() -> Iterator[Path]:
    with pool_directory() as directory:
        yield directory / "pool"


@pytest.mark.timeout(400)
def test_of_many_kills_in_a_row_none_loses_a_page_whose_put_was_acknowledged(
    cluster: Cluster,
    pool: Path,
    start_worker: Callable[..., Worker],
    connect: Callable[..., Client],
    request: pytest.FixtureRequest,
) -> None:
    kills = KILLS if request.config.getoption("rounds") == 1 else KILLS_OF_MANY_ROUNDS
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    options = (f"--pool-path={pool}", "--capacity=64MiB")
    segment = cluster.start_segment(options=options)
    pool_id = segment.wait_event("listening")["pool_id"]
    workers = [
        start_worker(
            name,
            seed=seed + i,
            same_host=same_host,
            page_bytes=SMALL_PAGE,
            pages_max=PAGES_MAX,
            pause_s=0.005,
        )
        for i, (name, same_host) in enumerate((("same-host", True), ("tcp", False)))
    ]
    reader = connect(deadline_ms=5000).namespace("chaos")
    counted = 0
    for _ in range(kills):
        time.sleep(rng.uniform(0, LONGEST_LIFE_S))  # a moment of its life, any moment
        segment.kill()
        acked = [key for worker in workers for key in worker.acked]
        segment = cluster.start_segment(options=options)
        assert segment.wait_event("listening")["pool_id"] == pool_id
        if acked:
            assert_all_readable(reader, acked, size_bytes=SMALL_PAGE)
        counted = len(acked)
        metrics = segment_metrics(segment)
        assert metrics["control_inventories_sent"] == 0 == metrics["control_journal_gaps"], segment.log()
        for worker in workers:
            worker.wait_progress("between two kills", pages=1)
    assert counted >= kills, "hardly anything was put"
    for worker in workers:
        assert_unharmed(worker.finish())
    assert_all_readable(
        connect().namespace("chaos"),
        [key for worker in workers for key in worker.acked],
        size_bytes=SMALL_PAGE,
    )
