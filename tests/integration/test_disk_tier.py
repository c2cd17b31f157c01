"""A segment with a disk tier, as a real process with a real file: what memory has no room for comes back from disk, a killed
segment's disk is served again, what went bad there is a miss, and a disk in trouble is no trouble of memory's."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvstore_client import Client
from support import pages
from support.disk_shim import Disk
from support.pool_files import pool_directory
from support.processes import Cluster, ServerProcess, segment_metrics
from support.verify import assert_all_readable, readable
from support.waiting import wait_until

POOL_BYTES = 16 << 20
PAGE_BYTES = pages.PAGE_BYTES
PAGES = 3 * POOL_BYTES // PAGE_BYTES
BATCH = 32


class DiskSegment:
    """One segment with a disk tier below `directory`."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        directory.mkdir()
        self.file = directory / "slab"
        self.process: ServerProcess

    def start(self, *options: str) -> ServerProcess:
        self.process = self._cluster.start_segment(
            options=(
                f"--disk-path={self.file}",
                "--disk-capacity=128MiB",
                "--disk-admit-uses=1",
                *options,
            )
        )
        return self.process

    def metric(self, name: str) -> float:
        return segment_metrics(self.process)[name]

    def fill(self, client: Client, count: int = PAGES) -> list[str]:
        """Puts more than memory has room for; returns when all of it is on disk."""
        namespace = client.namespace("model")
        before = self.metric("disk_written_pages")
        keys = [f"page-{i}" for i in range(count)]
        for start in range(0, count, BATCH):
            batch = keys[start : start + BATCH]
            assert all(namespace.batch_put(batch, [pages.content(key) for key in batch]))
            due = before + start + len(batch)
            wait_until(lambda due=due: self.metric("disk_written_pages") >= due, "the pages are written")  # type: ignore[misc]
        return keys


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    store = Cluster(tmp_path, capacity=str(POOL_BYTES))
    try:
        store.start_master()
        yield store
    finally:
        store.close()
        print(store.logs())  # pytest shows it when the test fails


@pytest.fixture
def segment(cluster: Cluster, tmp_path: Path) -> DiskSegment:
    return DiskSegment(cluster, tmp_path / "disk")


@pytest.fixture
def connect(cluster: Cluster) -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def new(same_host: bool = False) -> Client:
        clients.append(Client(cluster.masters, deadline_ms=10_000, same_host=same_host))
        return clients[-1]

    yield new
    for client in clients:
        client.close()


@pytest.mark.parametrize("same_host", [False, True], ids=["tcp", "same-host"])
def test_all_that_memory_has_no_room_for_is_read_back_from_disk(
    segment: DiskSegment, connect: Callable[..., Client], same_host: bool
) -> None:
    segment.start()
    client = connect(same_host)
    keys = segment.fill(client)
    assert segment.metric("evicted_to_disk_objects") > PAGES // 2
    assert segment.metric("object_count") < PAGES // 2
    namespace = client.namespace("model")
    assert all(namespace.batch_exists(keys))  # what is on disk is there
    assert readable(namespace, keys) == set(keys)
    assert readable(connect(same_host).namespace("model"), keys) == set(
        keys
    )  # of a client that has to ask where
    assert segment.metric("disk_hits") > PAGES // 2
    assert segment.metric("disk_corrupt_pages") == 0
    assert segment.metric("disk_promoted_pages") > 0


def test_the_admin_command_says_how_much_of_the_disk_is_used(
    segment: DiskSegment, cluster: Cluster, connect: Callable[..., Client]
) -> None:
    segment.start()
    segment.fill(connect(), BATCH)
    used = int(segment.metric("disk_used_bytes"))

    def told() -> bool:
        (view,) = json.loads(admin(cluster, "segments", "--json"))["segments"]
        limits = {each["name"]: each for each in view["limits"]}
        return bool(limits["disk_bytes"]["used"] == used)

    wait_until(told, "a heartbeat has told it")
    assert "2.1 MiB of 126.0 MiB" in admin(cluster, "segments")


def admin(cluster: Cluster, *arguments: str) -> str:
    command = [sys.executable, "-m", "kvstore.cli.main", "admin", *arguments, f"--master={cluster.control}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_page_that_was_used_once_is_not_written(
    segment: DiskSegment, connect: Callable[..., Client]
) -> None:
    segment.start("--disk-admit-uses=2")
    namespace = connect().namespace("model")
    for start in range(0, PAGES, BATCH):
        batch = [f"page-{i}" for i in range(start, start + BATCH)]
        assert all(namespace.batch_put(batch, [pages.content(key) for key in batch]))
        if start == 0:
            assert readable(namespace, batch[:8]) == set(batch[:8])
            wait_until(lambda: segment.metric("disk_written_pages") == 8, "what was read is written")
    assert segment.metric("disk_written_pages") == 8
    assert readable(namespace, [f"page-{i}" for i in range(BATCH)]) == {f"page-{i}" for i in range(8)}


@pytest.mark.parametrize("how", ["kill", "sigterm"])
def test_the_next_process_serves_what_is_on_disk(
    segment: DiskSegment, connect: Callable[..., Client], how: str
) -> None:
    segment.start()
    keys = segment.fill(connect())
    if how == "kill":
        segment.process.kill()
    else:
        assert segment.process.stop() == 0
    segment.start()
    assert segment.metric("disk_recovered_pages") == PAGES
    assert_all_readable(connect().namespace("model"), keys)
    assert segment.metric("disk_hits") >= PAGES


def test_what_went_bad_on_disk_is_a_miss_and_can_be_put_again(
    segment: DiskSegment, connect: Callable[..., Client]
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    segment.start()
    keys = segment.fill(connect())
    segment.process.kill()
    damage(segment.file, random.Random(seed))
    segment.start()
    client = connect()
    namespace = client.namespace("model")
    found = readable(namespace, keys)  # no wrong byte
    wait_until(lambda: len(readable(namespace, keys)) >= len(found), "what is whole is readable")
    found = readable(namespace, keys)
    lost = sorted(set(keys) - found)
    assert found and lost
    assert segment.metric("disk_corrupt_pages") > 0
    again = lost[:BATCH]

    def put_again() -> bool:
        """The directory hears of it in a moment that they are gone."""
        namespace.batch_put(again, [pages.content(key) for key in again])
        return readable(namespace, again) == set(again)

    wait_until(put_again, "what was lost can be put again")


def damage(file: Path, rng: random.Random) -> None:
    """A bit in each 300 KiB, from behind the superblock to where pages end."""
    with open(file, "r+b") as slab:
        for offset in range(8192, PAGES * (PAGE_BYTES + 4096), 300 << 10):
            at = offset + rng.randrange(200 << 10)
            slab.seek(at)
            byte = slab.read(1)[0]
            slab.seek(at)
            slab.write(bytes([byte ^ 1 << rng.randrange(8)]))
        os.fsync(slab.fileno())


@pytest.mark.parametrize("trouble", ["fails", "full", "hangs"])
def test_a_disk_in_trouble_is_no_trouble_of_memorys(
    segment: DiskSegment,
    connect: Callable[..., Client],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
) -> None:
    disk = Disk(segment.file.parent, tmp_path)
    for name, value in disk.environment.items():
        monkeypatch.setenv(name, value)
    segment.start("--disk-slow-ms=2000")  # a machine that is busy is not a disk that is slow
    client = connect()
    keys = segment.fill(client)
    namespace = client.namespace("model")
    if trouble == "hangs":
        disk.hangs()
    else:
        disk.fails(errno.EIO if trouble == "fails" else errno.ENOSPC)
    deadline = time.monotonic() + 60
    number = 0
    while segment.metric("disk_write_alarm") == 0:
        assert time.monotonic() < deadline, "no alarm"
        batch = [f"new-{number + i}" for i in range(BATCH)]
        number += BATCH
        assert all(namespace.batch_put(batch, [pages.content(key) for key in batch]))
        assert readable(namespace, batch) == set(batch)
    wait_until(lambda: "disk_alarm" in segment.process.log(), "the log says so")
    for _ in range(5):  # at the speed of memory: far from what a wait for this disk would be
        batch = [f"new-{number + i}" for i in range(BATCH)]
        number += BATCH
        assert all(namespace.batch_put(batch, [pages.content(key) for key in batch]))
        assert readable(namespace, batch) == set(batch)
    if trouble != "hangs":  # a disk that can't be written is read as ever
        assert segment.metric("disk_read_alarm") == 0
        assert keys[0] in readable(namespace, keys[:BATCH])
    disk.is_well()
    wait_until(lambda: segment.metric("disk_write_alarm") == 0, "the alarm ends by itself", 30)
    wait_until(lambda: "disk_well" in segment.process.log(), "the log says so")
    written = segment.metric("disk_written_pages")
    batch = [f"after-{i}" for i in range(BATCH)]
    assert all(namespace.batch_put(batch, [pages.content(key) for key in batch]))
    wait_until(lambda: segment.metric("disk_written_pages") >= written + BATCH, "pages are written again")


def test_a_segment_that_lost_its_disk_tells_the_directory(
    segment: DiskSegment, cluster: Cluster, connect: Callable[..., Client]
) -> None:
    with pool_directory() as pools:
        segment.start(f"--pool-path={pools / 'pool'}")
        keys = segment.fill(connect())
        assert segment.process.stop() == 0
        process = cluster.start_segment(options=(f"--pool-path={pools / 'pool'}",))
        namespace = connect().namespace("model")
        gone = keys[:BATCH]
        wait_until(
            lambda: segment_metrics(process)["control_inventories_sent"] == 1, "the content is announced anew"
        )

        def put_again() -> bool:
            assert all(namespace.batch_put(gone, [pages.content(key) for key in gone]))
            return readable(namespace, gone) == set(gone)

        wait_until(put_again, "what was on that disk can be put again")


def test_a_path_whose_directory_is_not_there_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    process = cluster.start_segment(options=(f"--disk-path={tmp_path}/absent/slab",), wait=False)
    assert process.process.wait(60) != 0
    assert "mount the disk, or set disk_path" in process.log()
