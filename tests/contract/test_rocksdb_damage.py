"""Bytes of the embedded store flipped on disk: what was hit is lost or recognisably wrong, the rest is there, and what was lost is
told."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import pytest

from kvstore.common.identity import identity_hash
from kvstore.master.metadata.rocksdb import RocksdbStore
from kvstore.master.metadata.store import Put
from kvstore.master.recovery import EPOCH_FLOOR_STEP, recover
from kvstore.master.state import layout
from kvstore.master.state.directory_state import Recovered
from kvstore.master.state.layout import NamespaceRecord

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


IDENTITY = b'{"model":"m"}'


async def recovered(path: Path) -> Recovered:
    """As a master that starts reads it. What it stores is carried over when it ends."""
    store = RocksdbStore(path)
    await store.open()
    try:
        return await recover(store, await store.acquire(), lambda record: None)
    finally:
        await store.close()


async def put_namespace(store: RocksdbStore, epoch: int) -> None:
    key = layout.namespace_key(identity_hash(IDENTITY))
    record = NamespaceRecord(IDENTITY, "m", epoch).encode()
    await store.commit((Put(key, record),), await store.acquire())


async def cleared_namespace_whose_bump_is_damaged(path: Path) -> None:
    store = RocksdbStore(path)
    await store.open()
    await put_namespace(store, 0)
    await store._rocksdb.checkpoint()  # type: ignore[union-attr]
    store._rocksdb.stop()  # type: ignore[union-attr]  # the rest is in the log alone
    await put_namespace(store, 1)
    await store.commit((Put(b"k", b"later"),), await store.acquire())
    await store.close()
    (log,) = [file for file in (path / "commits").glob("*.commits") if b'"epoch":1' in file.read_bytes()]
    log.write_bytes(log.read_bytes().replace(b'"epoch":1', b'"epoch":3'))


async def test_a_damaged_commit_that_cleared_a_namespace_does_not_bring_the_old_epoch_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "db"
    await cleared_namespace_whose_bump_is_damaged(path)
    found = await recovered(path)
    assert [record.epoch for record in found.namespaces] == [EPOCH_FLOOR_STEP]
    assert found.cluster.epoch_floor == EPOCH_FLOOR_STEP
    assert await recovered(path) == replace(found, index=ANY)  # raised once, and it stays


async def test_lost_commits_are_remembered_until_a_master_has_recovered(tmp_path: Path) -> None:
    path = tmp_path / "db"
    await cleared_namespace_whose_bump_is_damaged(path)
    assert await read(path) == {b"k": b"later"}  # a start that came no further, and a checkpoint at its end
    assert [record.epoch for record in (await recovered(path)).namespaces] == [EPOCH_FLOOR_STEP]
