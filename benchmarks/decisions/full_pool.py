"""0036, evict by need: what a put takes when each of its bytes costs an eviction."""

from __future__ import annotations

from statistics import quantiles
from time import perf_counter

from benchmarks.decisions.base import (
    BATCH,
    DEADLINE_MS,
    Batch,
    Table,
    fresh_keys,
    hashes,
    running_store,
)
from kvstore_client import Client

POOL_BYTES = 512 << 20
SIZE_BYTES = 256 << 10


def measure(repetitions: int) -> Table:
    """Puts into a pool with room, and into the same pool when each of them needs an eviction."""
    rows = []
    for name, same_host in (("TCP", False), ("same host", True)):
        with (
            running_store(POOL_BYTES) as masters,
            Client(masters, same_host=same_host, deadline_ms=DEADLINE_MS) as client,
        ):
            pages = client.namespace("full pool").pages()
            batch = Batch(BATCH, SIZE_BYTES)
            fitting = POOL_BYTES * 9 // 10 // (BATCH * SIZE_BYTES)
            rounds = max(repetitions * 10, 50)
            medians = {}
            for pool, count in (("room", fitting), ("full", fitting + rounds)):
                times = []
                for _ in range(count):
                    keys = hashes(fresh_keys(BATCH))
                    started = perf_counter()
                    pages.put_pieces(keys, batch.pieces, deadline_ms=DEADLINE_MS)
                    times.append((perf_counter() - started) * 1e3)
                counted = times[-rounds:] if pool == "full" else times[1:]
                cuts = quantiles(counted, n=100, method="inclusive")
                medians[pool] = cuts[49]
                ratio = f"{medians['room'] / cuts[49]:.2f}"
                rows.append([name, pool, str(len(counted)), f"{cuts[49]:.1f}", f"{cuts[98]:.1f}", ratio])
    return Table(
        f"put of {BATCH} pages of {SIZE_BYTES >> 10} KiB",
        ["by", "pool", "puts", "median ms", "p99 ms", "throughput, of that with room"],
        rows,
    )
