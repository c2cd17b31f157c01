"""0046, what one instance was told is stored another finds at once: two clients, one that writes, one that looks right after."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.decisions.base import BATCH, DEADLINE_MS, Batch, Table, fresh_keys, hashes, tcp_client
from benchmarks.peers.kvstore import KvstoreEtcdServers, announced
from kvstore_client import Pages
from kvstore_client.objects import DONE_STORED

TRIES = 1_000_000
SIZE_BYTES = 1024
POOL_BYTES = 512 << 20


class TwoMasters(KvstoreEtcdServers):
    """The first leads, the other stands by."""

    name = "two-masters"

    def start(self) -> None:
        super().start()
        second = announced(
            self,
            "listening",
            "master",
            f"--metadata={self.metadata()}",
            "--directory-port=0",
            "--control-port=0",
            "--http-port=0",
        )
        self.standby = f"127.0.0.1:{second['directory_port']}"


def measure(repetitions: int) -> Table:
    """`repetitions` are not needed: a million tries each."""
    with tempfile.TemporaryDirectory(prefix="kvstore-bench-") as directory:
        servers = TwoMasters(Path(directory), POOL_BYTES)
        try:
            servers.start()
            leader = servers.connection()["masters"]
            rows = [
                _row("the leader", leader, leader),
                _row("a standby", leader, servers.standby),
            ]
        finally:
            servers.stop()
    return Table(
        f"a page of {SIZE_BYTES} bytes is put by one client and looked for by another, {BATCH} at a time",
        ("the other one asks", "tries", "misses", "put, us", "exists, us", "exists of what is nowhere, us"),
        rows,
    )


def _row(name: str, writes_at: str, reads_at: str) -> list[str]:
    memory = Batch(BATCH, SIZE_BYTES)
    misses, puts, looks, absent = 0, [], [], []
    with tcp_client(writes_at) as writing, tcp_client(reads_at) as reading:
        writer, reader = (client.namespace("visible").pages() for client in (writing, reading))
        _wait_until_known(writer, reader)
        for turn in range(TRIES // BATCH + 1):
            keys = fresh_keys(BATCH)
            began = time.perf_counter()
            done = writer.put_pieces(hashes(keys), memory.pieces, deadline_ms=DEADLINE_MS)
            stored = time.perf_counter()
            found = reader.batch_exists(keys, pin_ms=0)
            looked = time.perf_counter()
            assert all(done.translate(DONE_STORED)), "the pool evicts what is old"
            misses += found.count(False)
            puts.append(stored - began)
            looks.append(looked - stored)
            if turn % 16 == 0:
                began = time.perf_counter()
                assert not any(reader.batch_exists(fresh_keys(BATCH), pin_ms=0))
                absent.append(time.perf_counter() - began)
    times = (f"{1e6 * median(each):,.0f}" for each in (puts, looks, absent))
    return [name, f"{len(puts) * BATCH:,}", f"{misses:,}", *times]


def _wait_until_known(writer: Pages, reader: Pages) -> None:
    """The namespace and the segment are known wherever they read; they are not what is measured."""
    memory, keys = Batch(1, SIZE_BYTES), fresh_keys(1)
    writer.put_pieces(hashes(keys), memory.pieces, deadline_ms=DEADLINE_MS)
    until = time.monotonic() + 30
    while not reader.batch_exists(keys)[0]:
        assert time.monotonic() < until, "the standby never served"
        time.sleep(0.05)
