"""0020, the master's part of a commit: from a journal batch that has come to its acknowledgement, and what it is made of."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.decisions.base import BATCH, Table
from kvstore.common.errors import KvstoreError
from kvstore.master.directory import Directory
from kvstore.master.metadata.rocksdb import RocksdbStore
from kvstore.master.metrics import MasterMetrics
from kvstore.master.recovery import recover
from kvstore.master.server import SWITCH_INTERVAL_S
from kvstore.master.state import events as ev
from kvstore.master.state.changes import Registration
from kvstore.master.state.directory_state import StateLimits
from kvstore.master.state.endpoint import Endpoint
from kvstore.master.state.journal_entries import staged_journal
from kvstore.master.state.log_rewrite import RECORD_ENTRIES_MAX
from kvstore.master.state.placement import POLICIES
from kvstore.master.state.replay import CorruptRecord
from kvstore_client.protocol import PEER_ID_BYTES, Status
from kvstore_client.protocol.journal import JournalGroup, JournalOp

SEGMENTS = (1, 4, 16)


class _Segment:
    """The stream of a segment that journals and waits for the acknowledgement."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._answered = asyncio.Event()
        self._acked_seq = 0
        self._last_seq = 0
        self._number = directory.open_session(self)

    async def attach(self) -> None:
        endpoint = Endpoint(
            os.urandom(PEER_ID_BYTES), os.urandom(PEER_ID_BYTES), "10.0.0.1", 7450, "", 1 << 30
        )
        self._directory.handle(ev.SegmentAttached(self._number, Registration(endpoint, 0, 1)))
        await self._answered.wait()

    async def commit(self, groups: bytes, entries: int) -> float:
        """Microseconds until the batch is acknowledged."""
        first_seq, self._last_seq = self._last_seq + 1, self._last_seq + entries
        started = time.perf_counter()
        self._directory.handle(ev.JournalReceived(self._number, first_seq, self._last_seq, groups))
        while self._acked_seq < self._last_seq:
            self._answered.clear()
            await self._answered.wait()
        return (time.perf_counter() - started) * 1e6

    def accept(self, segment_index: int, durable_seq: int, need_inventory: bool) -> None:
        self._answered.set()

    def ack(self, durable_seq: int) -> None:
        self._acked_seq = durable_seq
        self._answered.set()

    def request_inventory(self) -> None:
        raise AssertionError("nothing is missing")

    def limit_quotas(self, limits: object) -> None: ...
    def retire_namespaces(self, namespaces: tuple[bytes, ...], barrier: int) -> None:
        pass

    def refuse_entries(self, last_seq: int, entries: int, reason: str) -> None:
        raise AssertionError(reason)

    def close(self, status: Status, reason: str) -> None:
        pass


def measure(repetitions: int) -> Table:
    """Medians. The interpreter gives way as often as in the master."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    rows = [
        [f"stage {entries:,} entries", f"{_staging_us(entries, repetitions * 40):.0f}"]
        for entries in (BATCH, RECORD_ENTRIES_MAX)
    ]
    with tempfile.TemporaryDirectory(prefix="kvstore-bench-", dir=".") as directory:
        path = Path(directory)
        rows.append(
            ["write and sync a record of a batch (no thread)", f"{_sync_us(path, repetitions * 100):.0f}"]
        )
        for count in SEGMENTS:
            us = asyncio.run(_committed(path / str(count), count, repetitions * 100))
            rows.append([f"batch of {BATCH} to its acknowledgement, {count} segments at once", f"{us:.0f}"])
    return Table("the master's part of a commit", ["what", "us"], rows)


def _batch(entries: int) -> bytes:
    return JournalGroup(JournalOp.ADD, b"namespac", os.urandom(16 * entries), (4096,) * entries).encode()


def _staging_us(entries: int, repetitions: int) -> float:
    groups = _batch(entries)
    times = []
    for _ in range(repetitions):
        started = time.perf_counter()
        staged_journal(groups, 1, 0, RECORD_ENTRIES_MAX)
        times.append((time.perf_counter() - started) * 1e6)
    return median(times)


def _sync_us(path: Path, repetitions: int) -> float:
    record = _batch(BATCH)
    times = []
    with (path / "file").open("wb", buffering=0) as file:
        file.write(bytes(4 << 20))
        os.fsync(file.fileno())
        file.seek(0)
        for _ in range(repetitions):
            started = time.perf_counter()
            file.write(record)
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - started) * 1e6)
    return median(times)


async def _committed(path: Path, segments: int, repetitions: int) -> float:
    store = RocksdbStore(path)
    await store.open()
    fence = await store.acquire()
    recovered = await recover(store, fence, _unexpected)
    directory = Directory(
        store,
        fence,
        recovered,
        StateLimits(),
        next(iter(POLICIES.values()))(random.Random(1)),
        MasterMetrics(),
        run_bytes=1 << 20,
        on_fenced=_unexpected,
        on_failed=_unexpected,
    )
    directory.start()
    times: list[float] = []

    async def work(segment: _Segment) -> None:
        for _ in range(repetitions):
            times.append(await segment.commit(_batch(BATCH), BATCH))

    streams = [_Segment(directory) for _ in range(segments)]
    for stream in streams:
        await stream.attach()
    await asyncio.gather(*map(work, streams))
    await directory.stop()
    await store.close()
    return median(times)


def _unexpected(what: KvstoreError | CorruptRecord) -> None:
    raise AssertionError(what)
