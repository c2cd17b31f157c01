"""A segment is emptied onto others while clients put and get: no get fails, no acked page is lost; also when a master or a segment
dies meanwhile."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

from typer.testing import CliRunner

from kvstore.cli.main import app
from kvstore_client import Client
from support import pages
from support.pool_files import pool_directory
from support.processes import Cluster, ServerProcess, segment_metrics
from support.verify import assert_all_readable, readable
from support.waiting import wait_until
from support.workers import Worker, assert_unharmed

DRAIN_S = 120.0
"""A bound, not a measure."""


def admin(cluster: Cluster, *arguments: str, code: int = 0) -> Any:
    """What the command prints as JSON."""
    result = CliRunner().invoke(app, ["admin", *arguments, "--json", f"--master={cluster.control}"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout.splitlines()[0])


def segments(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """By the name that the test has given it."""
    views = admin(cluster, "segments")["segments"]
    ports = {name: str(s.wait_event("listening")["port"]) for name, s in cluster.segments.items()}
    return {
        name: view for name, port in ports.items() for view in views if view["address"].endswith(f":{port}")
    }


def drain(cluster: Cluster, name: str, *arguments: str, code: int = 0) -> Any:
    return admin(cluster, "drain", segments(cluster)[name]["segment_id"], "--yes", *arguments, code=code)


def stopped(segment: ServerProcess) -> str:
    """SIGTERM; why its drain ended."""
    segment.process.send_signal(signal.SIGTERM)
    assert segment.process.wait(DRAIN_S) == 0
    (ended,) = [line for line in segment.log().splitlines() if '"event": "drain_ended"' in line]
    why: str = json.loads(ended)["why"]
    return why


def fill(client: Client, count: int, name: str = "page", page_bytes: int = pages.PAGE_BYTES) -> list[str]:
    keys = [f"{name}/{i}" for i in range(count)]
    namespace = client.namespace("chaos")
    for start in range(0, count, 32):
        batch = keys[start : start + 32]
        assert all(namespace.batch_put(batch, [pages.content(key, page_bytes) for key in batch]))
    return keys


def test_one_of_three_is_taken_away_under_load(
    cluster: Cluster, start_worker: Callable[..., Worker], connect: Callable[..., Client]
) -> None:
    for name in ("one", "two", "three"):
        cluster.start_segment(name)
    workers = [
        start_worker("same-host", seed=1, pages_max=2000),
        start_worker("tcp", seed=2, same_host=False, pages_max=2000),
    ]
    keys = fill(connect(same_host=False), 600)
    for worker in workers:
        worker.wait_progress("before the drain", pages=64)
    gone = max(segments(cluster).items(), key=lambda each: each[1]["object_count"])[0]
    assert segments(cluster)[gone]["object_count"] > 0
    result = drain(cluster, gone, "--wait", f"--wait-s={DRAIN_S}")
    assert result["segment"]["drain"]["phase"] == "drained"
    assert result["segment"]["drain"]["moved_objects"] > 0
    assert cluster.segments[gone].stop() == 0
    for worker in workers:
        worker.wait_progress("after it is gone", pages=64)
    for worker in workers:
        report = worker.finish()
        assert_unharmed(report)
        assert report["misses"] == 0, "a get failed"
        keys += worker.acked
    # At once: nothing is to be waited for.
    assert readable(connect().namespace("chaos"), keys) == set(keys)


def test_a_drain_goes_on_when_the_master_is_killed(
    cluster: Cluster, start_worker: Callable[..., Worker], connect: Callable[..., Client]
) -> None:
    for name in ("one", "two"):
        cluster.start_segment(name)
    keys = fill(connect(same_host=False), 1200)
    gone = max(segments(cluster).items(), key=lambda each: each[1]["object_count"])[0]
    drain(cluster, gone)
    wait_until(
        lambda: any(segment_metrics(s).get("copied_in", 0) > 0 for s in cluster.segments.values()),
        "the drain has begun",
        poll_s=0.01,
    )
    cluster.master.kill()
    cluster.start_master()
    result = drain(cluster, gone, "--wait", f"--wait-s={DRAIN_S}")
    assert result["segment"]["drain"]["phase"] == "drained"
    cluster.segments[gone].kill()  # without a goodbye
    assert_all_readable(connect().namespace("chaos"), keys)


def test_a_drain_goes_on_when_a_target_is_killed(cluster: Cluster, connect: Callable[..., Client]) -> None:
    for name in ("one", "two", "three"):
        cluster.start_segment(name)
    namespace = connect(same_host=False).namespace("chaos")
    fill(connect(same_host=False), 1200)
    source, target, other = sorted(
        cluster.segments, key=lambda name: segments(cluster)[name]["object_count"], reverse=True
    )
    held_at_target = segments(cluster)[target]["object_count"]
    all_keys = [f"page/{i}" for i in range(1200)]
    drain(cluster, source)
    wait_until(
        lambda: segment_metrics(cluster.segments[target]).get("copied_in", 0) > 0,
        "the drain has begun",
        poll_s=0.01,
    )
    cluster.segments[target].kill()
    result = drain(cluster, source, "--wait", f"--wait-s={DRAIN_S}")
    assert result["segment"]["drain"]["phase"] == "drained"
    assert cluster.segments[source].stop() == 0
    # What the target alone held is lost, and nothing of what the source did.
    lost = set(all_keys) - readable(namespace, all_keys)
    assert len(lost) <= held_at_target
    assert segments(cluster)[other]["object_count"] >= 1200 - held_at_target


def test_a_drain_goes_on_when_the_draining_segment_comes_back(
    cluster: Cluster, connect: Callable[..., Client]
) -> None:
    with pool_directory() as pools:

        def start(name: str, port: int = 0) -> None:
            cluster.start_segment(name, port=port, options=(f"--pool-path={pools / name}",))

        for name in ("one", "two"):
            start(name)
        keys = fill(connect(same_host=False), 1200)
        gone = max(segments(cluster).items(), key=lambda each: each[1]["object_count"])[0]
        drain(cluster, gone)
        wait_until(
            lambda: any(segment_metrics(s).get("copied_in", 0) > 0 for s in cluster.segments.values()),
            "the drain has begun",
            poll_s=0.01,
        )
        port = cluster.segments[gone].wait_event("listening")["port"]
        cluster.segments[gone].kill()  # its pool stays, for its next process
        start(gone, port)
        result = drain(cluster, gone, "--wait", f"--wait-s={DRAIN_S}")
        assert result["segment"]["drain"]["phase"] == "drained"
        assert cluster.segments[gone].stop() == 0
        assert_all_readable(connect().namespace("chaos"), keys)


def test_sigterm_drains_where_it_is_told_to(
    cluster: Cluster, start_worker: Callable[..., Worker], connect: Callable[..., Client]
) -> None:
    cluster.start_segment("one", options=("--on-term=drain", f"--drain-timeout-s={DRAIN_S}"))
    worker = start_worker("w", same_host=False, pages_max=2000)
    keys = fill(connect(same_host=False), 600)
    cluster.start_segment("two")
    worker.wait_progress("before the drain", pages=32)
    assert segments(cluster)["one"]["object_count"] >= 600
    assert stopped(cluster.segments["one"]) == "drained"
    worker.wait_progress("after it is gone", pages=32)
    report = worker.finish()
    assert_unharmed(report)
    assert report["misses"] == 0, "a get failed"
    assert readable(connect().namespace("chaos"), keys + worker.acked) == {*keys, *worker.acked}


def test_sigterm_does_not_wait_for_what_will_not_come(
    cluster: Cluster, connect: Callable[..., Client]
) -> None:
    cluster.start_segment("one", options=("--on-term=drain",))
    fill(connect(same_host=False), 32)
    assert stopped(cluster.segments["one"]) == "no target"
