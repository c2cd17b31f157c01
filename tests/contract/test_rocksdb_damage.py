"""Bytes of the embedded store flipped on disk: what was hit is lost or recognisably wrong, the rest is there, and what was lost is
told."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.master.metadata.rocksdb import RocksdbStore

RECORDS = 200
WRITER = """
import asyncio, os, sys
from pathlib import Path
from kvstore.master.metadata.rocksdb import RocksdbStore
from kvstore.master.metadata.store import Put

async def write():
    store = RocksdbStore(Path(sys.argv[1]))
    await store.open()
    fence = await store.acquire()
    for i in range(int(sys.argv[2])):
        await store.commit((Put(b"k%03d" % i, b"value-%03d-" % i * 100),), fence)
    os._exit(0)  # no clean close: what is durable lies in the commit log

asyncio.run(write())
"""


def crashed_store(directory: Path) -> Path:
    path = directory / "db"
    subprocess.run([sys.executable, "-c", WRITER, str(path), str(RECORDS)], check=True, timeout=60)
    return path


def flip_a_byte(path: Path, pattern: str) -> None:
    """In the middle of record 100, wherever a file has it."""
    hits = 0
    for file in path.glob(pattern):
        raw = bytearray(file.read_bytes())
        at = raw.find(b"value-100-value-100-")
        if at >= 0:
            raw[at + 300] ^= 1
            file.write_bytes(raw)
            hits += 1
    assert hits == 1


async def read(path: Path) -> dict[bytes, bytes]:
    store = RocksdbStore(path)
    await store.open()
    found = {key: value async for page in store.scan(b"k") for key, value in page}
    await store.close()
    return found


async def test_a_crash_loses_nothing_that_was_committed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(await read(crashed_store(tmp_path))) == RECORDS
    assert "commits_lost" not in caplog.messages


async def test_a_flipped_byte_in_the_log_costs_its_commit_only_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = crashed_store(tmp_path)
    flip_a_byte(path, "commits/*")
    with caplog.at_level(logging.ERROR):
        found = await read(path)
    assert found == {b"k%03d" % i: b"value-%03d-" % i * 100 for i in range(RECORDS) if i != 100}
    (told,) = [record for record in caplog.records if record.message == "commits_lost"]
    assert told.fields["commits"] == 1  # type: ignore[attr-defined]


async def test_a_flipped_byte_in_a_table_costs_its_record_only(tmp_path: Path) -> None:
    path = crashed_store(tmp_path)
    await read(path)  # carries what is in the log over to a table
    flip_a_byte(path, "*.sst")
    found = await read(path)
    assert len(found) == RECORDS
    assert [key for key, value in found.items() if value != b"value-%s-" % key[1:] * 100] == [b"k100"]
