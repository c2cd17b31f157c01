"""Two clusters, one namespace: what an engine of one wrote, an engine of the other reads; and what a cut between them does."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.network_lab import network_lab
from support.two_clusters import EAST, HUB, PAGE_BYTES, WEST, TwoClusters
from support.waiting import wait_until
from support.workers import Worker, assert_unharmed

PAGES = 32
OTHER = {EAST: WEST, WEST: EAST}
BACK_TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoClusters]:
    # A short name: a unix socket's path has at most 107 bytes.
    private = Path(tempfile.mkdtemp(prefix="kv-")) / "run"
    with network_lab(HUB, (EAST, WEST), private) as lab:
        running = TwoClusters(lab, tmp_path_factory.mktemp("two"), private)
        try:
            running.start()
            yield running
            print(running.logs())
        finally:
            running.close()
    shutil.rmtree(private.parent)


@pytest.mark.parametrize("writer", [EAST, WEST])
def test_a_page_written_in_one_cluster_is_read_in_the_other_byte_for_byte(
    clusters: TwoClusters, writer: str
) -> None:
    first = 0 if writer == EAST else 1000
    written = clusters.engine(writer, "put", first)
    assert written["good"] == PAGES, written
    read = clusters.engine(OTHER[writer], "get", first)
    assert (read["good"], read["different"]) == (PAGES, 0), read


def test_a_page_lies_in_the_cluster_that_wrote_it_and_only_the_other_reads_it_over_the_network(
    clusters: TwoClusters,
) -> None:
    written = clusters.engine(EAST, "put", 2000)["stats"]
    near = clusters.engine(EAST, "get", 2000)["stats"]
    far = clusters.engine(WEST, "get", 2000)["stats"]
    total_bytes = PAGES * PAGE_BYTES
    assert (written["transport_same_host_bytes_put"], written["transport_tcp_bytes_put"]) == (total_bytes, 0)
    assert (near["transport_same_host_bytes_get"], near["transport_tcp_bytes_get"]) == (total_bytes, 0)
    assert (far["transport_same_host_bytes_get"], far["transport_tcp_bytes_get"]) == (0, total_bytes)


def test_a_page_that_the_other_cluster_has_is_not_stored_again(clusters: TwoClusters) -> None:
    assert clusters.engine(EAST, "put", 3000)["good"] == PAGES
    again = clusters.engine(WEST, "put", 3000)
    assert again["good"] == again["stats"]["put_exists"] == PAGES
    assert again["stats"]["transport_same_host_bytes_put"] + again["stats"]["transport_tcp_bytes_put"] == 0


def test_a_cluster_cut_off_harms_neither_and_its_pages_are_read_again_when_it_is_back(
    clusters: TwoClusters,
) -> None:
    assert clusters.engine(EAST, "put", 4000)["good"] == PAGES
    workers = {
        cluster: Worker(clusters.masters, cluster, enter=clusters.lab.hosts[cluster].enter)
        for cluster in (EAST, WEST)
    }
    try:
        for worker in workers.values():
            worker.wait_progress("before the cut")
        clusters.lab.cut(EAST)
        try:
            unreachable = clusters.engine(WEST, "get", 4000)
            assert (unreachable["good"], unreachable["different"]) == (0, 0), unreachable
            assert not clusters.engine(EAST, "try", 4000)["opened"]
            workers[WEST].wait_progress("while the other cluster is cut off")
        finally:
            clusters.lab.heal(EAST)
        wait_until(
            lambda: clusters.engine(WEST, "get", 4000)["good"] == PAGES,
            "the pages are read again",
            BACK_TIMEOUT_S,
        )
        for worker in workers.values():
            worker.wait_progress("after the cut")
        reports = {cluster: worker.finish() for cluster, worker in workers.items()}
    finally:
        for worker in workers.values():
            worker.close()
    for report in reports.values():
        assert_unharmed(report)
        assert report["hits"] > 0
