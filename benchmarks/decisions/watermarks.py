"""0015, watermarks: what a put waits for when the pool is full."""

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
    tcp_client,
)

POOL_BYTES = 512 << 20
SIZE_BYTES = 256 << 10


def measure(repetitions: int) -> Table:
    """Puts into a pool with room, and into the same pool when each of them needs an eviction."""
    rows = []
    with running_store(POOL_BYTES) as masters, tcp_client(masters) as client:
        pages = client.namespace("watermarks").pages()
        batch = Batch(BATCH, SIZE_BYTES)
        fitting = POOL_BYTES * 8 // 10 // (BATCH * SIZE_BYTES)
        rounds = max(repetitions * 4, 20)
        for name, count in (("room", fitting), ("full", fitting + rounds)):
            times = []
            for _ in range(count):
                keys = hashes(fresh_keys(BATCH))
                started = perf_counter()
                pages.put_pieces(keys, batch.pieces, deadline_ms=DEADLINE_MS)
                times.append((perf_counter() - started) * 1e3)
            counted = times[-rounds:] if name == "full" else times[1:]
            cuts = quantiles(counted, n=10)
            rows.append([name, str(len(counted)), f"{cuts[4]:.1f}", f"{cuts[8]:.1f}"])
    return Table(
        f"put of {BATCH} pages of {SIZE_BYTES >> 10} KiB over TCP",
        ["pool", "puts", "median ms", "p90 ms"],
        rows,
    )
