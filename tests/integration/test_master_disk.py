"""A master whose disk is slow, hangs, fails or is full: reads, status and admin go on, and it recovers by itself."""

from __future__ import annotations

import asyncio
import errno
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.disk_shim import Disk
from support.master_peers import DirectoryPeer, SegmentPeer, fingerprints, until
from support.master_process import MasterProcess
from support.processes import wait_gone
from support.store_worker import rocksdb_pid
from support.waiting import BUSY_S, wait_until

# What a read may take while the disk waits: far below what the disk takes, far above what a busy machine does.
READ_S_MAX = 0.25


class Rig:
    """A master on a disk of its own, with a segment that has 64 durable pages."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.disk = Disk(directory / "metadata", directory)

    def launch(self) -> None:
        self.master = MasterProcess(self.directory, environment=self.disk.environment)

    async def start(self) -> None:
        self.launch()
        await self.connect()
        self.old = fingerprints(64, 1)
        self.ns = await self.peer.open_namespace(model="m")
        await self.attach()
        await self.segment.journal(self.ns, self.old)
        await self.segment.acked()

    async def connect(self) -> None:
        self.ready = await asyncio.to_thread(self.master.ready)
        self.peer = await DirectoryPeer.greeted(self.ready["directory_port"])

    async def attach(self) -> None:
        self.segment = SegmentPeer(self.ready["control_port"])
        await self.segment.attach()

    async def http(self, path: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ready["http_port"])
        writer.write(f"GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return answer

    async def slowest_read(self, seconds: float) -> float:
        """Of look-ups, status and metrics one after another for so long; all of them answer as they should."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + seconds
        slowest = 0.0
        while loop.time() < ends_at:
            started = loop.time()
            assert all(await self.peer.exists(self.ns, self.old))
            assert b" 200 " in (await self.http("/metrics"))[:40]
            await self.http("/readyz")
            slowest = max(slowest, loop.time() - started)
            await self.segment.heartbeat()
            await asyncio.sleep(0.01)
        return slowest

    async def close(self) -> None:
        self.disk.is_well()
        if hasattr(self, "peer"):
            self.peer.close()
        if hasattr(self, "segment"):
            await self.segment.close()
        self.master.close()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path)
    try:
        yield rig
    finally:
        await rig.close()


@pytest.mark.alone
@pytest.mark.parametrize("sync_ms", [20, 100, 300, 1000])
async def test_reads_do_not_wait_for_a_slow_disk_and_puts_wait_for_a_sync_or_two(
    rig: Rig, sync_ms: int
) -> None:
    await rig.start()
    rig.disk.is_slow(sync_ms)
    reading = asyncio.create_task(rig.slowest_read(2.0))
    for batch in range(2):
        started = time.monotonic()
        await rig.segment.journal(rig.ns, fingerprints(128, 10 + batch))
        await rig.segment.acked()
        assert time.monotonic() - started < 2.5 * sync_ms / 1000 + 1
        assert time.monotonic() - started >= sync_ms / 1000, "durable means synced"
    assert await reading < READ_S_MAX


@pytest.mark.alone
async def test_a_disk_that_hangs_stops_puts_alone_and_nothing_is_lost_when_it_answers_again(rig: Rig) -> None:
    await rig.start()
    rig.disk.hangs()
    await rig.segment.journal(rig.ns, new := fingerprints(128, 2))
    assert await rig.slowest_read(5.0) < READ_S_MAX
    assert not any(await rig.peer.exists(rig.ns, new)), "not before it is durable"
    rig.disk.is_well()
    await rig.segment.acked()
    assert all(await rig.peer.exists(rig.ns, new))


@pytest.mark.alone
async def test_sigterm_ends_a_master_whose_disk_hangs_within_a_second_and_what_was_acked_is_there(
    rig: Rig,
) -> None:
    await rig.start()
    pid = rocksdb_pid(rig.master.process.pid)
    assert pid is not None
    rig.disk.hangs()
    await rig.segment.journal(rig.ns, fingerprints(128, 2))
    await asyncio.sleep(0.1)
    started = time.monotonic()
    assert await asyncio.to_thread(rig.master.end, signal.SIGTERM) == 0
    assert time.monotonic() - started < 1.0 + BUSY_S
    wait_gone([pid], 2)
    rig.disk.is_well()
    rig.launch()
    await rig.connect()
    assert all(await rig.peer.exists(rig.ns, rig.old))


@pytest.mark.alone
async def test_sigterm_ends_a_master_whose_disk_hangs_while_it_starts(rig: Rig) -> None:
    await rig.start()
    rig.master.end(signal.SIGKILL)
    rig.disk.hangs()
    rig.launch()
    lock = rig.directory / "metadata" / "commits" / "lock"
    await asyncio.to_thread(wait_until, lambda: is_locked(lock), "the directory is being opened")
    started = time.monotonic()
    await asyncio.to_thread(rig.master.end, signal.SIGTERM)
    assert time.monotonic() - started < 1.0 + BUSY_S
    assert not rig.master.events("master_ready")
    await asyncio.to_thread(wait_until, lambda: not is_locked(lock), "another master may have it")


def is_locked(file: Path) -> bool:
    """Whether somebody has it. (To try would keep a master out for a moment.)"""
    return any(line.split()[5].endswith(f":{file.stat().st_ino}") for line in open("/proc/locks"))


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS])
async def test_a_disk_that_fails_for_a_while_costs_nothing_that_was_acked(rig: Rig, error: int) -> None:
    await rig.start()
    for round_number in range(5):  # more often than the log has files
        rig.disk.fails(error)
        await rig.segment.journal(rig.ns, new := fingerprints(128, 10 + round_number))
        await until(
            lambda n=round_number: len(rig.master.events("commits_stalled")) > n, "the disk refuses a commit"
        )
        assert all(await rig.peer.exists(rig.ns, rig.old))
        rig.disk.is_well()
        await rig.segment.acked()
        assert all(await rig.peer.exists(rig.ns, new))
        rig.old += new
    rig.master.end(signal.SIGKILL)
    rig.peer.close()
    rig.launch()
    await rig.connect()
    assert all(await rig.peer.exists(rig.ns, rig.old))


async def test_a_full_disk_takes_commits_while_the_log_has_room_then_none_and_then_all_of_them(
    rig: Rig,
) -> None:
    await rig.start()
    rig.disk.is_full()
    sent = 0
    while not rig.master.events("commits_stalled"):
        assert sent < 100, "the log has 16 MiB, and a full one is told after a second"
        await rig.segment.journal(rig.ns, fingerprints(16_000, 100 + sent))
        sent += 1
        await asyncio.sleep(0.05)
        assert all(await rig.peer.exists(rig.ns, rig.old))
    assert sent > 20, "there was room"
    (told, *_) = rig.master.events("metadata_store_read_only")
    assert "No space left" in told["error"] and "Free space" in told["remedy"]
    assert await rig.slowest_read(1.0) < 10 * READ_S_MAX
    rig.disk.is_well()
    await rig.segment.acked()
    for batch in range(sent):
        assert all(await rig.peer.exists(rig.ns, fingerprints(16_000, 100 + batch)))
    await until(lambda: rig.master.events("commits_resumed"), "it says that it goes on")


async def test_a_master_starts_on_a_full_disk_reads_and_stores_again_when_there_is_space(rig: Rig) -> None:
    await rig.start()
    rig.master.end(signal.SIGKILL)  # what is durable lies in the log alone
    rig.peer.close()
    await rig.segment.close()
    rig.disk.is_full()
    for _ in range(2):
        rig.launch()
        await rig.connect()
        assert rig.master.events("metadata_store_read_only")
        assert all(await rig.peer.exists(rig.ns, rig.old))
        rig.master.end(signal.SIGKILL)
        rig.peer.close()
    rig.launch()
    await rig.connect()
    rig.segment = SegmentPeer(rig.ready["control_port"])
    rig.segment.last_seq = 64
    await rig.segment.attach()
    rig.disk.is_well()
    await until(lambda: rig.master.events("metadata_store_recovered"), "RocksDB takes everything again", 20)
    await rig.segment.journal(rig.ns, new := fingerprints(64, 2))
    await rig.segment.acked()
    assert all(await rig.peer.exists(rig.ns, rig.old + new))
    rig.master.end(signal.SIGTERM)
    rig.peer.close()
    rig.launch()
    await rig.connect()
    assert all(await rig.peer.exists(rig.ns, rig.old + new))


def mirrors_of(directory: Path) -> list[Path]:
    """Where RocksDB reads the files of a full disk."""
    return [
        link.parent
        for link in Path("/dev/shm").glob("kvstore-rocksdb-*/CURRENT")
        if leads_to(link, directory)
    ]


def leads_to(link: Path, directory: Path) -> bool:
    try:
        return link.readlink().is_relative_to(directory)
    except FileNotFoundError:
        return False  # somebody else's, gone meanwhile


async def test_what_a_killed_master_of_a_full_disk_leaves_in_memory_goes_when_another_one_starts(
    rig: Rig, tmp_path: Path
) -> None:
    await rig.start()
    rig.master.end(signal.SIGKILL)
    rig.peer.close()
    await rig.segment.close()
    rig.disk.is_full()
    rig.launch()
    await rig.connect()
    (tmp_path / "other").mkdir()
    for is_killed in (False, True):
        if is_killed:
            child = rocksdb_pid(rig.master.process.pid)
            rig.master.end(signal.SIGKILL)
            wait_gone([] if child is None else [child])
        other = MasterProcess(tmp_path / "other")
        try:
            await asyncio.to_thread(other.ready)
        finally:
            other.end(signal.SIGTERM)
        if is_killed:
            assert mirrors_of(rig.directory) == []
        else:
            # It looks time and again whether the disk takes anything, and makes a new one each time that it does not.
            await until(lambda: len(mirrors_of(rig.directory)) == 1, "it reads on")
            assert all(await rig.peer.exists(rig.ns, rig.old))


async def test_a_directory_without_a_log_on_a_full_disk_is_read_and_the_log_is_made_when_there_is_space(
    rig: Rig,
) -> None:
    await rig.start()
    rig.master.end(signal.SIGTERM)
    rig.peer.close()
    await rig.segment.close()
    for file in (rig.directory / "metadata" / "commits").iterdir():
        file.unlink()
    (rig.directory / "metadata" / "commits").rmdir()
    rig.disk.is_full()
    rig.launch()
    await rig.connect()
    assert all(await rig.peer.exists(rig.ns, rig.old))
    rig.segment = SegmentPeer(rig.ready["control_port"])
    rig.segment.last_seq = 64
    attaching = asyncio.create_task(rig.segment.attach())
    rig.disk.is_well()
    await attaching
    await rig.segment.journal(rig.ns, new := fingerprints(64, 2))
    await rig.segment.acked()
    assert all(await rig.peer.exists(rig.ns, rig.old + new))
