"""0032, a pool outlives its process: how fast what an earlier process has left is verified, and when it is served again."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.decisions.base import BATCH, DEADLINE_MS, Batch, Table, fresh_keys, hashes, tcp_client
from benchmarks.peers.base import PeerUnavailable
from benchmarks.peers.kvstore import KvstoreServers
from kvstore_client.objects import DONE_FOUND, DONE_STORED

POOL_BYTES = 4 << 30
FILL = 0.9
SIZES_BYTES = (64 << 10, 1 << 20)
REPETITIONS_MAX = 5
SERVED_TIMEOUT_S = 120.0


class KeptServers(KvstoreServers):
    """A segment whose pool outlives it, and that is killed and started again."""

    name = "kept"

    def __init__(self, directory: Path, pool: Path) -> None:
        super().__init__(directory, POOL_BYTES)
        self.segment_options = (f"--pool-path={pool}",)

    def kill_segment(self) -> None:
        segment = self._processes.pop()
        segment.kill()
        segment.wait()

    def log_line(self, event: str) -> dict[str, Any]:
        """The newest of this name in the newest process' log."""
        log = self.directory / f"{self.name}-{len(self.pids()) - 1}.log"
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
        return next(line for line in reversed(lines) if line.get("event") == event)


def measure(repetitions: int) -> Table:
    """From the start of the process to the first page that a client gets; the pool holds 90 % of 4 GiB."""
    rows = []
    for size_bytes in SIZES_BYTES:
        with (
            tempfile.TemporaryDirectory(prefix="kvstore-bench-") as directory,
            tempfile.TemporaryDirectory(prefix="kvstore-bench-", dir="/dev/shm") as pools,
        ):
            servers = KeptServers(Path(directory), Path(pools) / "pool")
            try:
                servers.start()
                rows.append(_row(servers, size_bytes, min(repetitions, REPETITIONS_MAX)))
            finally:
                servers.stop()
    return Table(
        "a 4 GiB pool after kill -9",
        (
            "pages of",
            "pages",
            "served again",
            "verified, s",
            "GB/s",
            "start to serving, s",
            "announced anew",
        ),
        rows,
    )


def _row(servers: KeptServers, size_bytes: int, repetitions: int) -> list[str]:
    batches = int(POOL_BYTES * FILL) // size_bytes // BATCH
    keys = [fresh_keys(BATCH) for _ in range(batches)]
    memory = Batch(BATCH, size_bytes)
    with tcp_client(servers.connection()["masters"]) as client:
        pages = client.namespace("warm").pages()
        for batch in keys:
            done = pages.put_pieces(hashes(batch), memory.pieces, deadline_ms=DEADLINE_MS)
            assert all(done.translate(DONE_STORED)), "the pool is large enough"
    served, scans, rates, starts = 0, [], [], []
    for _ in range(repetitions):
        servers.kill_segment()
        began = time.monotonic()
        servers.start_segment()
        with tcp_client(servers.connection()["masters"]) as client:
            pages = client.namespace("warm").pages()
            while not all(pages.batch_exists(keys[0])):
                if time.monotonic() - began > SERVED_TIMEOUT_S:
                    raise PeerUnavailable("the pages are not served again")
                time.sleep(0.01)
            got = pages.get_pieces(hashes(keys[0]), memory.pieces, deadline_ms=DEADLINE_MS)
            assert all(got.translate(DONE_FOUND))
            starts.append(time.monotonic() - began)
            served = sum(sum(pages.batch_exists(batch)) for batch in keys)
        line = servers.log_line("pool_adopted")
        scans.append(line["seconds"])
        rates.append(line["gb_per_s"])
    return [
        f"{size_bytes >> 10} KiB",
        str(batches * BATCH),
        f"{served / (batches * BATCH):.2%}",
        f"{median(scans):.2f}",
        f"{median(rates):.1f}",
        f"{median(starts):.1f}",
        "yes" if servers.log_line("attached").get("journal") == "inventory" else "no",
    ]
