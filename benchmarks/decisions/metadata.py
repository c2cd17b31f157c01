"""0013, RocksDB for the embedded directory: a durable commit of one journal batch, beside its alternatives."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from pathlib import Path

from benchmarks.decisions.base import Table, median_ms
from kvstore.master.metadata.rocksdb import RocksdbStore
from kvstore.master.metadata.store import Put

RECORD_BYTES = 3200  # 128 objects of a journal batch


def measure(repetitions: int) -> Table:
    """The median commit, durable when it returns, of a record under a new key each time."""
    count = repetitions * 40
    record = os.urandom(RECORD_BYTES)
    with tempfile.TemporaryDirectory(prefix="kvstore-bench-", dir=".") as directory:
        there = Path(directory)
        rows = [
            ["RocksDB (rocksdict, synced WAL)", f"{_rocksdb(there / 'rocksdb', record, count):.0f}"],
            ["SQLite (WAL, synchronous=FULL)", f"{_sqlite(there / 'sqlite', record, count):.0f}"],
            ["a growing file (write, fdatasync)", f"{_file(there / 'file', record, count, 0):.0f}"],
            [
                "a preallocated file (write, fdatasync)",
                f"{_file(there / 'ready', record, count, 64 << 20):.0f}",
            ],
        ]
    return Table(f"durable commit of a record of {RECORD_BYTES} bytes", ["store", "us"], rows)


def _rocksdb(path: Path, record: bytes, count: int) -> float:
    loop = asyncio.new_event_loop()
    store = RocksdbStore(path)
    loop.run_until_complete(store.open())
    fence = loop.run_until_complete(store.acquire())
    keys = iter(range(1 << 30))
    try:
        return 1e3 * median_ms(
            lambda: loop.run_until_complete(store.commit([Put(b"k%012d" % next(keys), record)], fence)), count
        )
    finally:
        loop.run_until_complete(store.close())
        loop.close()


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
