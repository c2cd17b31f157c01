"""0013 and 0020, what keeps the embedded directory: a durable commit of one journal batch, beside its alternatives."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rocksdict

from benchmarks.decisions.base import Table, median_ms
from kvstore.master.metadata.rocksdb import RocksdbStore
from kvstore.master.metadata.store import Put

RECORD_BYTES = 3200  # 128 objects of a journal batch
READY_BYTES = 64 << 20


def measure(repetitions: int) -> Table:
    """The median commit, durable when it returns, of a record under a new key each time."""
    count = repetitions * 40
    record = os.urandom(RECORD_BYTES)
    with tempfile.TemporaryDirectory(prefix="kvstore-bench-", dir=".") as directory:
        there = Path(directory)
        measured = {
            "a preallocated file (write, fdatasync)": _file(there / "ready", record, count, READY_BYTES),
            "a growing file (write, fdatasync)": _file(there / "file", record, count, 0),
            "the commit log, its thread and back to the event loop": _store(there / "log", record, count),
            "RocksDB (rocksdict, synced WAL), holds the interpreter": _rocksdb(there / "db", record, count),
            "the same in a process of its own, over a socket": _process(there / "process", record, count),
            "SQLite (WAL, synchronous=FULL)": _sqlite(there / "sqlite", record, count),
        }
    rows = [[name, f"{us:.0f}"] for name, us in measured.items()]
    return Table(f"durable commit of a record of {RECORD_BYTES} bytes", ["store", "us"], rows)


def _store(path: Path, record: bytes, count: int) -> float:
    async def commits() -> float:
        store = RocksdbStore(path)
        await store.open()
        fence = await store.acquire()
        times = []
        clock = asyncio.get_running_loop().time
        for number in range(count + 1):
            started = clock()
            await store.commit([Put(b"k%012d" % number, record)], fence)
            times.append(clock() - started)
        await store.close()
        return 1e6 * sorted(times[1:])[count // 2]

    return asyncio.run(commits())


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_recycle_log_file_num(4)
    options.set_write_buffer_size(READY_BYTES)
    synced = rocksdict.WriteOptions()
    synced.sync = True
    database = rocksdict.Rdict(str(path), options)
    yield database, synced
    database.close()


def _rocksdb(path: Path, record: bytes, count: int) -> float:
    keys = iter(range(1 << 30))
    with _opened(path) as (database, synced):
        return 1e3 * median_ms(lambda: database.put(b"k%012d" % next(keys), record, write_opt=synced), count)


def _process(path: Path, record: bytes, count: int) -> float:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", __name__, str(path), str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process, mine:
        theirs.close()

        def commit() -> None:
            mine.send(record)
            mine.recv(1)

        us = 1e3 * median_ms(commit, count)
        mine.close()
        process.wait(10)
    return us


def _serve(path: Path, descriptor: int) -> None:
    """Commits what comes, and says so, until the peer is gone."""
    with socket.socket(fileno=descriptor) as peer, _opened(path) as (database, synced):
        number = 0
        while message := peer.recv(1 << 20):
            number += 1
            database.put(b"k%012d" % number, message, write_opt=synced)
            peer.send(b"1")


def _sqlite(path: Path, record: bytes, count: int) -> float:
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE records (key INTEGER PRIMARY KEY, value BLOB)")
        return 1e3 * median_ms(
            lambda: connection.execute("INSERT INTO records (value) VALUES (?)", (record,)), count
        )


def _file(path: Path, record: bytes, count: int, ready_bytes: int) -> float:
    with path.open("wb", buffering=0) as log:
        log.write(bytes(ready_bytes))
        os.fsync(log.fileno())
        log.seek(0)

        def append() -> None:
            log.write(record)
            os.fdatasync(log.fileno())

        return 1e3 * median_ms(append, count)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
