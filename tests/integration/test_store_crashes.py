"""The embedded store and its process of RocksDB, killed at any moment: nothing that was acked is lost, and nothing is half there."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from kvstore.master.metadata.rocksdb import RocksdbStore
from kvstore.master.metadata.store import Put
from support.disk_shim import Disk
from support.processes import process_is_gone, wait_gone
from support.store_worker import LAST_KEY, StoreWorker, content, read_all, rocksdb_pid
from support.waiting import wait_until

ROUNDS = 12


def own_rocksdb_pid() -> int | None:
    return rocksdb_pid(os.getpid())


async def test_whatever_is_killed_whenever_what_was_acked_is_there_and_in_order(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    durable = 0
    for round_number in range(ROUNDS):
        worker = StoreWorker(tmp_path / "db", seed)
        what = rng.choice(("master", "rocksdb", "both"))
        await asyncio.sleep(rng.random() * 0.4)  # when it happens is the point
        if what != "master" and (pid := worker.rocksdb_pid()) is not None:
            os.kill(pid, signal.SIGKILL)
        if what == "rocksdb":
            worker.acked_until(20)  # commits go on without it
        durable = max(durable, worker.kill())
        if rng.random() < 0.5:
            continue  # the next one finds it as it is
        store = RocksdbStore(tmp_path / "db")
        await store.open()
        found = await read_all(store)
        await store.close()
        last = int(found.get(LAST_KEY, b"0"))
        assert last >= durable, f"round {round_number}, {what} killed"
        assert found == content(seed, last), f"round {round_number}, {what} killed"
        durable = last
    assert durable > 100, "there was something to lose"


async def test_the_process_of_rocksdb_is_started_again_and_reads_go_on(tmp_path: Path) -> None:
    store = RocksdbStore(tmp_path / "db")
    await store.open()
    fence = await store.acquire()
    for i in range(5):
        await store.commit((Put(b"k%d" % i, b"v"),), fence)
        pid = own_rocksdb_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert len(await read_all(store)) == i + 1
        assert own_rocksdb_pid() not in (None, pid)
    await store.close()
    assert own_rocksdb_pid() is None


async def test_a_master_that_is_killed_takes_the_process_of_rocksdb_along(tmp_path: Path) -> None:
    worker = StoreWorker(tmp_path / "db", 1)
    pid = worker.rocksdb_pid()
    assert pid is not None
    worker.kill()
    wait_gone([pid], 5)


async def test_a_process_of_rocksdb_that_hangs_ends_with_its_master_and_lets_the_directory_go(
    tmp_path: Path,
) -> None:
    disk = Disk(tmp_path / "db", tmp_path)
    worker = StoreWorker(tmp_path / "db", 1, disk.environment)
    worker.acked_until(50)
    pid = worker.rocksdb_pid()
    assert pid is not None
    disk.hangs()
    await asyncio.sleep(0.2)  # until a checkpoint hangs, most likely
    worker.kill()
    wait_gone([pid], 5)
    disk.is_well()
    store = RocksdbStore(tmp_path / "db")
    await store.open()
    await store.close()


async def test_signals_to_the_group_leave_the_process_of_rocksdb_to_its_master(tmp_path: Path) -> None:
    store = RocksdbStore(tmp_path / "db")
    await store.open()
    pid = own_rocksdb_pid()
    assert pid is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    fence = await store.acquire()
    await store.commit((Put(b"k", b"v"),), fence)
    assert await store.get(b"k") == b"v"
    assert own_rocksdb_pid() == pid
    await store.close()
    wait_gone([pid], 5)


async def test_closing_ends_the_process_of_rocksdb_and_a_cancelled_opening_as_well(tmp_path: Path) -> None:
    store = RocksdbStore(tmp_path / "db")
    opening = asyncio.create_task(store.open())
    pid = None
    while pid is None:
        await asyncio.sleep(0.001)
        pid = own_rocksdb_pid()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await store.close()
    wait_until(lambda: process_is_gone(pid), "the process is gone", 5)
    again = RocksdbStore(tmp_path / "db")
    await again.open()
    await again.close()


async def test_every_commit_and_every_term_is_synced_before_it_counts(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "db", tmp_path)
    worker = StoreWorker(tmp_path / "db", 3, disk.environment)
    # Of the log's own files, which are made ready with fsync().
    assert sum("fdatasync" in line for line in disk.lines(".commits")) >= 1, "the term"
    groups = 40
    before = sum("fdatasync" in line for line in disk.lines(".commits"))
    worker.acked_until(groups)
    worker.process.send_signal(signal.SIGSTOP)
    synced = sum("fdatasync" in line for line in disk.lines(".commits"))
    worker.kill()
    assert synced - before >= groups - 1
