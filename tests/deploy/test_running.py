"""The store as the manifests describe it, started for real: commands, environment, volumes and probes are the rendered ones.

See processes.py for what is replaced so that pods can be processes of one machine.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support import engine_worker
from support.waiting import wait_until

from .kustomize import render
from .manifests import PROBES, TEST_OVERLAYS, find, http_port, sglang_example, token_secret
from .processes import LocalCluster, Pod, can_mount, free_network

EXTRA_CONFIG = "--hicache-storage-backend-extra-config"
PAGE_BYTES = 256 << 10
PAGES = 48
ENGINE_TIMEOUT_S = 60.0
WRITES_BACK_TIMEOUT_S = 20.0


@dataclass
class Store:
    """A running store and two engine pods, one on a node with a segment, one on a node without."""

    cluster: LocalCluster
    masters: list[Pod]
    segments: list[Pod]
    near: Pod
    far: Pod

    def engine(
        self, pod: Pod, action: str, first: int, count: int = PAGES, token_file: str = ""
    ) -> dict[str, Any]:
        """Runs one engine to its end: its config is the example's, its environment and mounts are the pod's."""
        arguments = pod.container["args"]
        config = arguments[arguments.index(EXTRA_CONFIG) + 1]
        if len(self.masters) == 1:
            config = json.dumps(
                {**json.loads(config), "masters": "kvstore-master-0.kvstore-master-peers:7440"}
            )
        if token_file:
            config = json.dumps({**json.loads(config), "token_file": token_file})
        words = ["python3", engine_worker.__file__, config, action, *map(str, (first, count, PAGE_BYTES))]
        process = self.cluster.spawn(pod, pod.container, words)
        assert process.wait(ENGINE_TIMEOUT_S) == 0, pod.log()
        answer: dict[str, Any] = json.loads(pod.log().splitlines()[-1])
        return answer

    def put(self, pod: Pod, first: int) -> None:
        """Puts pages and sees to it that all of them are acknowledged."""
        answer = self.engine(pod, "put", first)
        assert answer["opened"] and answer["good"] == PAGES, answer

    def wait_writable(self, pod: Pod, first: int) -> None:
        """For after a master's start: segments find it within moments, until then there is nowhere to put a page."""
        wait_until(
            lambda: self.engine(pod, "put", first)["good"] == PAGES, "writes are back", WRITES_BACK_TIMEOUT_S
        )

    def assert_readable(self, pod: Pod, first: int) -> dict[str, Any]:
        answer = self.engine(pod, "get", first)
        assert (answer["good"], answer["different"]) == (PAGES, 0), answer
        return answer


def start_store(overlay: str, directory: Path, segment_count: int) -> Store:
    objects = [*render(TEST_OVERLAYS / overlay), token_secret(secrets.token_hex(16))]
    cluster = LocalCluster(objects, directory, free_network())
    try:
        return _start(cluster, segment_count)
    except BaseException:
        cluster.close()
        raise


def _start(cluster: LocalCluster, segment_count: int) -> Store:
    objects = cluster.objects
    names = {item["metadata"]["name"] for item in objects if item["kind"] == "StatefulSet"}
    etcd = cluster.add_replicas(find(objects, "StatefulSet/kvstore-etcd")) if "kvstore-etcd" in names else []
    masters = cluster.add_replicas(find(objects, "StatefulSet/kvstore-master"))
    daemons = find(objects, "DaemonSet/kvstore-segment")
    segments = [cluster.add(daemons, f"kvstore-segment-{n}", f"node-{n}") for n in range(segment_count)]
    deployment = find(sglang_example(), "Deployment/sglang")
    near = cluster.add(deployment, "sglang-near", "node-0")
    far = cluster.add(deployment, "sglang-far", "node-without-segment")
    for pod in [*etcd, *masters, *segments]:
        cluster.start(pod)
    for pod in [*etcd, *masters, *segments]:
        for kind in PROBES:
            cluster.wait_probe(pod, kind)
    return Store(cluster, masters, segments, near, far)


@pytest.fixture(scope="module")
def short_directory() -> Iterator[Path]:
    """A directory with a short name: a unix socket's path has at most 107 bytes."""
    directory = Path(tempfile.mkdtemp(prefix="kv-"))
    print(f"file systems of their own: {'yes' if can_mount() else 'not on this machine'}")
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def store(short_directory: Path) -> Iterator[Store]:
    """The base: three masters, three etcd members, two nodes with segments."""
    directory = short_directory / "base"
    directory.mkdir()
    running = start_store("small", directory, segment_count=2)
    yield running
    running.cluster.close()


def test_pages_put_by_one_engine_are_read_by_another_byte_for_byte(store: Store) -> None:
    store.put(store.near, 0)
    store.assert_readable(store.far, 0)


def test_an_engine_beside_a_segment_reads_from_shared_memory_and_a_distant_one_over_tcp(store: Store) -> None:
    store.put(store.near, 1000)
    near = store.assert_readable(store.near, 1000)["stats"]
    far = store.assert_readable(store.far, 1000)["stats"]
    assert near["transport_same_host_bytes_get"] > 0
    assert far["transport_same_host_bytes_get"] == 0
    assert far["transport_tcp_bytes_get"] == PAGES * PAGE_BYTES


def test_the_socket_lies_in_the_directory_that_both_pods_mount_and_opens_to_one_user(store: Store) -> None:
    directory = Path(store.near.local_path("/run/kvstore"))
    (socket,) = directory.glob("*.sock")
    assert socket.is_socket() and socket.stat().st_mode & 0o077 == 0
    assert directory.stat().st_mode & 0o077 == 0
    assert Path(store.segments[0].local_path("/run/kvstore")) == directory


def test_an_engine_with_another_token_gets_nothing(store: Store, tmp_path: Path) -> None:
    store.put(store.near, 500)
    assert store.engine(store.far, "try", 500)["good"] == PAGES
    (tmp_path / "token").write_text("not-the-token")
    answer = store.engine(store.far, "try", 500, token_file=str(tmp_path / "token"))
    assert (answer["opened"], answer["good"], answer["different"]) == (False, 0, 0)


def test_a_restarted_segment_has_its_old_id_and_its_old_memory(store: Store) -> None:
    segment = store.segments[1]
    pool = Path(segment.local_path("/pool/pages")).stat()
    identity = Path(segment.local_path("/var/lib/kvstore/segment/segment_id"))
    before = identity.read_text()
    assert store.cluster.terminate(segment) == 0
    store.cluster.start(segment)
    for kind in PROBES:
        store.cluster.wait_probe(segment, kind)
    assert identity.read_text() == before
    assert Path(segment.local_path("/pool/pages")).stat().st_ino == pool.st_ino
    assert '"adopted": true' in segment.log()


def test_pages_outlive_the_leader_and_writes_come_back(store: Store) -> None:
    store.put(store.near, 2000)
    leader = next(pod for pod in store.masters if is_leader(pod))
    store.cluster.kill(leader)
    store.assert_readable(store.far, 2000)
    store.wait_writable(store.near, 3000)
    assert sum(is_leader(pod) for pod in store.masters if pod is not leader) == 1
    store.cluster.start(leader)
    for kind in PROBES:
        store.cluster.wait_probe(leader, kind)
    store.assert_readable(store.far, 3000)


def test_a_segment_told_to_stop_ends_well_and_takes_its_pages_out_of_the_directory(store: Store) -> None:
    store.put(store.near, 4000)
    for segment in store.segments:
        assert store.cluster.terminate(segment) == 0, segment.log()
    answer = wait_until(
        lambda: (found := store.engine(store.far, "get", 4000))["good"] == 0 and found, "the pages are gone"
    )
    assert answer["different"] == 0
    for segment in store.segments:
        store.cluster.start(segment)
    for segment in store.segments:
        store.cluster.wait_probe(segment, "readinessProbe")
    store.put(store.near, 4000)


def test_masters_told_to_stop_end_well(store: Store) -> None:
    for master in store.masters:
        assert store.cluster.terminate(master) == 0, master.log()


def test_the_single_node_store_keeps_its_directory_over_a_restart_of_the_master(
    short_directory: Path,
) -> None:
    directory = short_directory / "one"
    directory.mkdir()
    running = start_store("small-single-node", directory, segment_count=1)
    try:
        running.put(running.near, 0)
        (master,) = running.masters
        assert running.cluster.terminate(master) == 0, master.log()
        running.cluster.start(master)
        for kind in PROBES:
            running.cluster.wait_probe(master, kind)
        running.assert_readable(running.far, 0)
        running.wait_writable(running.near, 1000)
    finally:
        running.cluster.close()


def is_leader(pod: Pod) -> bool:
    """By what its metrics say."""
    url = f"http://{pod.facts.ip}:{http_port(pod.container, pod.container['readinessProbe'])}/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        return "\nkvstore_master_is_leader 1.0\n" in answer.read().decode()
