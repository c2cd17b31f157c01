"""A segment whose data directory was copied: real processes, and a client that has pages there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvstore.cli.main import app
from kvstore_client import Client
from support.processes import Cluster, segment_metrics
from support.waiting import wait_until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, capacity="64MiB")
    cluster.start_master()
    try:
        yield cluster
    finally:
        cluster.close()


def test_the_living_segment_keeps_its_id_and_its_pages_and_the_copy_comes_in_when_it_has_died(
    cluster: Cluster, tmp_path: Path
) -> None:
    one = cluster.start_segment("one")
    with Client(cluster.masters) as client:
        pages = client.namespace("pages")
        assert pages.put("a", b"a" * 5000)
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        two = cluster.start_segment("two", wait=False)
        ports = [each.wait_event("listening")["port"] for each in (one, two)]
        wait_until(lambda: "is that of the segment at" in two.log(), "the copy is told why", timeout_s=30)
        assert all(f"127.0.0.1:{port}" in two.log() for port in ports) and "--data-dir" in two.log()
        # It comes again and again; its owner notices nothing.
        master_log = cluster.master.log()
        assert master_log.count('"segment_id_taken"') == 1, "a line a minute"
        assert "segment_superseded" not in master_log
        for _ in range(20):
            assert pages.get("a") == b"a" * 5000
            assert pages.put("a", b"a" * 5000)
        assert segment_metrics(one)["control_attaches"] == 1
        assert segment_metrics(two)["control_attaches"] == 0
        status = CliRunner().invoke(app, ["admin", "status", "--no-reach", "--master", cluster.control])
        assert all(f"127.0.0.1:{port}" in status.output.splitlines()[0] for port in ports), status.output

        one.kill()
        two.wait_event("attached", timeout_s=30)
        wait_until(lambda: pages.put("b", b"b" * 5000), "the copy takes pages", timeout_s=30)
