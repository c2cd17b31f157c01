"""The wall clock of servers steps, forwards and backwards: what runs for a time runs for that time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from kvstore_client import Client, Keep
from support import pages
from support.clock_shim import WallClock
from support.pool_files import pool_directory
from support.processes import Cluster, segment_metrics
from support.verify import assert_all_readable, readable
from support.waiting import wait_until

YEAR_S = 365 * 86_400
HEARTBEATS = 3
PIN_MS = 1500


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WallClock:
    clock = WallClock(tmp_path / "clock")
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    return clock


@pytest.fixture
def cluster(clock: WallClock, tmp_path: Path) -> Iterator[Cluster]:
    store = Cluster(tmp_path, capacity="64MiB")
    try:
        store.start_master()
        yield store
    finally:
        store.close()
        print(store.logs())


def test_no_step_of_the_clock_ends_what_was_promised_or_makes_it_last(
    cluster: Cluster, clock: WallClock
) -> None:
    segment = cluster.start_segment()
    keys = [f"page-{i}" for i in range(16)]
    with Client(cluster.masters, deadline_ms=5000) as client:
        namespace = client.namespace("steps")
        assert all(namespace.batch_put(keys, [pages.content(key) for key in keys]))
        assert all(namespace.batch_keep(keys, Keep.RETAIN, ttl_ms=600_000))
        for step_s in (YEAR_S, -YEAR_S, 0):
            clock.steps_to(step_s)
            beats = segment_metrics(segment)["control_heartbeats_sent"]
            wait_until(
                lambda beats=beats: segment_metrics(segment)["control_heartbeats_sent"] >= beats + HEARTBEATS,
                "it goes on telling that it is there",
            )
            metrics = segment_metrics(segment)
            assert metrics["retained_objects"] == len(keys)
            assert metrics["control_attaches"] == 1 and metrics["control_heartbeats_failed"] == 0
            assert readable(namespace, keys) == set(keys)
            assert namespace.put(f"new {step_s}", b"page")
            assert namespace.batch_exists(keys, pin_ms=PIN_MS) == [True] * len(keys)
            assert segment_metrics(segment)["pinned_bytes"] > 0
            wait_until(lambda: segment_metrics(segment)["pinned_bytes"] == 0, "the pins run out")
    assert '"event": "segment_suspect"' not in cluster.master.log()


def test_a_segment_that_is_away_for_a_moment_is_not_forgotten_by_a_step_of_the_masters_clock(
    cluster: Cluster, clock: WallClock
) -> None:
    with pool_directory() as pools:
        options = (f"--pool-path={pools / 'pool'}",)
        segment = cluster.start_segment(options=options)
        with Client(cluster.masters, deadline_ms=5000) as client:
            namespace = client.namespace("steps")
            assert namespace.put("page", pages.content("page"))
            segment.kill()
            wait_until(lambda: '"event": "segment_suspect"' in cluster.master.log(), "its end is seen")
            clock.steps_to(YEAR_S)
            segment = cluster.start_segment(options=options)
            last_line = json.loads(segment.log().splitlines()[-1])
            assert int(last_line["time"][:4]) > datetime.now().year, "the clock of the servers has stepped"
            assert_all_readable(namespace, ["page"])
        assert segment_metrics(segment)["control_inventories_sent"] == 0, (
            "its place in the directory was kept"
        )
        assert '"event": "segment_gone"' not in cluster.master.log()
