"""Quotas of tenants, with real processes: who has more than its quota gives up its own, and nobody else does for it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvstore.cli.main import app
from kvstore_client import Client, Identity, Namespace, Shard
from support.etcd_server import own_prefix, shared_etcd
from support.processes import Cluster, ServerProcess, segment_metrics
from support.replicated_cluster import ReplicatedCluster
from support.waiting import wait_until

MIB = 1 << 20
PAGE_BYTES = 65_536
PAGES = 16  # of a put, a MiB in all
QUOTA_MIB = 16


def admin(control: str, *arguments: str, code: int = 0) -> Any:
    """What `kvstore admin ... --json` prints."""
    environment = {"KVSTORE_ADMIN_MASTER": control}
    result = CliRunner().invoke(app, ["admin", *arguments, "--json"], env=environment)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if code == 0 else result.output


def keys(number: int) -> list[str]:
    return [f"{number} {page}" for page in range(PAGES)]


def put_mebibytes(namespace: Namespace, first: int, count: int) -> int:
    """How many pages were stored."""
    stored = 0
    for number in range(first, first + count):
        pages = [key.encode().ljust(PAGE_BYTES) for key in keys(number)]
        stored += sum(namespace.batch_put(keys(number), pages))
    return stored


def there(namespace: Namespace, first: int, count: int) -> int:
    """How many pages of these MiB are found."""
    return sum(sum(namespace.batch_exists(keys(number))) for number in range(first, first + count))


def bytes_of(control: str, name: str) -> int:
    (view,) = [each for each in admin(control, "namespaces")["namespaces"] if each["name"] == name]
    return int(view["object_bytes"])


def master_metric(master: ServerProcess, name: str) -> float:
    port = master.wait_event("listening")["http_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    (value,) = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"kvstore_master_{name} ")]
    return float(value)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, capacity="64MiB")
    try:
        cluster.start_master()
        yield cluster
    finally:
        cluster.close()
        print(cluster.logs())


def test_a_tenant_beyond_its_quota_is_a_cache_of_that_size_and_costs_nobody_else_a_page(
    store: Cluster,
) -> None:
    segment = store.start_segment()
    with Client(store.masters, deadline_ms=5000) as client:
        greedy, modest = client.namespace("greedy"), client.namespace("modest")
        assert put_mebibytes(modest, 0, 24) == 24 * PAGES
        put_mebibytes(greedy, 0, 1)
        set_to = admin(store.control, "quota", "set", "greedy", f"{QUOTA_MIB}MiB")["quota"]
        assert set_to["limit_bytes"] == QUOTA_MIB * MIB
        assert set_to["namespace_count"] == 1
        wait_until(lambda: segment_metrics(segment)["quota_limits"] == 1, "the segment is told")

        assert put_mebibytes(greedy, 1, 10) == 10 * PAGES
        for number in range(11, 61):  # what is used again and again stays
            assert put_mebibytes(greedy, number, 1) == PAGES, "a put is never refused for the quota"
            assert all(greedy.batch_get(keys(5))), number
        assert there(modest, 0, 24) == 24 * PAGES
        assert there(greedy, 61 - 12, 12) == 12 * PAGES
        assert there(greedy, 6, 30) == 0
        assert bytes_of(store.control, "greedy") <= QUOTA_MIB * MIB
        counted = segment_metrics(segment)
        assert counted["evicted_objects"] == 0
        assert counted["quota_evicted_objects"] == pytest.approx(61 * PAGES - QUOTA_MIB * PAGES, abs=PAGES)
        assert counted["quota_refused"] == 0
        assert master_metric(store.master, "quotas") == 1

        # Without it, only the size of the store is a limit.
        admin(store.control, "quota", "remove", "greedy")
        wait_until(lambda: segment_metrics(segment)["quota_limits"] == 0, "the segment is told")
        assert put_mebibytes(greedy, 100, 20) == 20 * PAGES
        assert bytes_of(store.control, "greedy") >= 30 * MIB
        assert "no such quota" in admin(store.control, "quota", "remove", "greedy", code=1)


def test_what_lies_beyond_a_new_quota_goes_and_the_quota_holds_over_restarts(store: Cluster) -> None:
    segment = store.start_segment()
    ports = segment.wait_event("listening")
    with Client(store.masters, deadline_ms=10_000) as client:
        greedy = client.namespace("greedy")
        assert put_mebibytes(greedy, 0, 30) == 30 * PAGES
        admin(store.control, "quota", "set", "greedy", f"{QUOTA_MIB}MiB")
        wait_until(lambda: bytes_of(store.control, "greedy") <= QUOTA_MIB * MIB, "what is too much goes")
        assert there(greedy, 30 - QUOTA_MIB, QUOTA_MIB) == QUOTA_MIB * PAGES, "the newest stay"

        store.master.kill()
        store.start_master()
        (shown,) = admin(store.control, "quota", "show")["quotas"]
        assert shown["limit_bytes"] == QUOTA_MIB * MIB
        segment.kill()
        segment = store.start_segment(port=ports["port"])
        wait_until(lambda: segment_metrics(segment)["quota_limits"] == 1, "the segment is told")
        wait_until(lambda: put_mebibytes(greedy, 40, 1) == PAGES, "puts go on")
        assert put_mebibytes(greedy, 50, 30) == 30 * PAGES
        assert bytes_of(store.control, "greedy") <= QUOTA_MIB * MIB
        assert segment_metrics(segment)["evicted_objects"] == 0

        # Its identity has the quota, not its epoch.
        admin(store.control, "clear", "greedy", "--yes")
        assert put_mebibytes(client.namespace("greedy"), 100, 30) == 30 * PAGES
        wait_until(lambda: bytes_of(store.control, "greedy") <= QUOTA_MIB * MIB, "and so is its next epoch")


def test_a_tag_is_kept_to_its_quota_over_segments_and_namespaces(store: Cluster) -> None:
    for number in range(3):
        options = () if number == 0 else ("--unix-path=off",)
        store.start_segment(f"segment {number}", options=options, wait=False)
    for segment in store.segments.values():
        segment.wait_event("attached")
    with Client(store.masters, deadline_ms=5000) as client:
        modest = client.namespace("modest")
        assert put_mebibytes(modest, 0, 60) == 60 * PAGES  # more than fits at home
        team = [client.namespace(identity(model)) for model in ("one", "two")]
        admin(store.control, "quota", "set", "--tag", "team-a", "32MiB")
        for number in range(40):
            for namespace in team:
                put_tagged(namespace, number)

        def used() -> int:
            return int(admin(store.control, "quota", "show")["quotas"][0]["used_bytes"])

        assert admin(store.control, "quota", "show")["quotas"][0]["namespace_count"] == 2
        wait_until(lambda: used() <= (32 + 3 * 4) * MIB, "the quota, and 4 MiB for each segment")
        assert used() >= 16 * MIB, "it is a cache of about that size"
        assert there(modest, 0, 60) == 60 * PAGES
        assert sum(segment_metrics(each)["evicted_objects"] for each in store.segments.values()) == 0


SHARD = Shard(0, 32, 1, 4)


def identity(model: str) -> Identity:
    return Identity(
        model=model,
        kv_dtype="bfloat16",
        store_dtype="bfloat16",
        pool_class="MHA",
        byte_order="page_first",
        page_size=64,
        tag="team-a",
    )


def put_tagged(namespace: Namespace, number: int) -> None:
    pages = namespace.pages(shards=[SHARD])
    for page in range(PAGES):
        pages.put(f"{number * PAGES + page:064x}", b"x" * PAGE_BYTES)


def test_a_namespace_that_may_have_nothing_gets_no_place_and_others_do(store: Cluster) -> None:
    store.start_segment()
    with Client(store.masters, deadline_ms=5000) as client:
        barred, other = client.namespace("barred"), client.namespace("other")
        assert put_mebibytes(barred, 0, 2) == 2 * PAGES
        admin(store.control, "quota", "set", "barred", "0")
        wait_until(lambda: bytes_of(store.control, "barred") == 0, "what it has goes")
        assert put_mebibytes(barred, 10, 2) == 0
        assert master_metric(store.master, "quota_refused_total") >= 2
        assert "quota_refused" in store.master.log()
        assert put_mebibytes(other, 0, 2) == 2 * PAGES
        listed = {each["name"]: each for each in admin(store.control, "namespaces")["namespaces"]}
        assert listed["barred"]["quota_bytes"] == 0
        assert listed["other"]["quota_bytes"] is None
        assert listed["other"]["unused_ms"] < 60_000


def test_a_namespace_that_nobody_uses_is_forgotten_once_it_is_empty(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, capacity="64MiB")
    try:
        cluster.start_master(options=("--namespace-unused-s=2",))
        cluster.start_segment()
        with Client(cluster.masters, deadline_ms=5000) as client:
            full, empty = client.namespace("full"), client.namespace("empty")
            assert put_mebibytes(full, 0, 1) == PAGES
            assert not empty.exists("a")

            def names() -> set[str]:
                return {each["name"] for each in admin(cluster.control, "namespaces")["namespaces"]}

            assert names() == {"full", "empty"}
            wait_until(lambda: names() == {"full"}, "the empty one is forgotten")
            assert there(full, 0, 1) == PAGES
            wait_until(lambda: put_mebibytes(empty, 0, 1) == PAGES, "it is opened anew when it is wanted")
            assert names() == {"full", "empty"}
    finally:
        cluster.close()
        print(cluster.logs())


def test_a_quota_holds_over_a_fail_over(tmp_path: Path) -> None:
    cluster = ReplicatedCluster(tmp_path, shared_etcd().uri(own_prefix(tmp_path), ttl_s=2))
    try:
        cluster.start()
        segment = cluster.start_segment()
        leader = cluster.leader()
        with Client(cluster.masters, deadline_ms=10_000) as client:
            greedy = client.namespace("greedy")
            assert put_mebibytes(greedy, 0, 1) == PAGES
            admin(f"127.0.0.1:{leader.control_port}", "quota", "set", "greedy", f"{QUOTA_MIB}MiB")
            leader.process.kill()
            next_leader = cluster.leader(timeout_s=30, but_not=leader)
            control = f"127.0.0.1:{next_leader.control_port}"
            (shown,) = admin(control, "quota", "show")["quotas"]
            assert shown["limit_bytes"] == QUOTA_MIB * MIB
            wait_until(lambda: put_mebibytes(greedy, 1, 1) == PAGES, "puts go on", timeout_s=30)
            wait_until(lambda: segment_metrics(segment)["quota_limits"] == 1, "the segment is told")
            assert put_mebibytes(greedy, 10, 40) == 40 * PAGES
            assert bytes_of(control, "greedy") <= QUOTA_MIB * MIB
    finally:
        cluster.close()
