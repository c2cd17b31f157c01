"""0016, pins: what it costs to promise that what exists will stay."""

from __future__ import annotations

from benchmarks.decisions.base import (
    BATCH,
    DEADLINE_MS,
    Batch,
    Table,
    fresh_keys,
    hashes,
    median_ms,
    running_store,
    tcp_client,
)


def measure(repetitions: int) -> Table:
    """Existence of a batch, answered by the directory alone and confirmed by its segment; and the get that follows."""
    with running_store(512 << 20) as masters, tcp_client(masters) as client:
        pages = client.namespace("pins").pages()
        keys = fresh_keys(BATCH)
        batch = Batch(BATCH, 64 << 10)
        pages.put_pieces(hashes(keys), batch.pieces, deadline_ms=DEADLINE_MS)

        def get() -> None:
            pages.get_pieces(hashes(keys), batch.pieces, deadline_ms=DEADLINE_MS)

        asked_ms = median_ms(lambda: pages.batch_exists(keys, pin_ms=0), repetitions * 20)
        pinned_ms = median_ms(lambda: pages.batch_exists(keys, pin_ms=10_000), repetitions * 20)
        get_ms = median_ms(get, repetitions * 5)
    rows = [
        ["exists, directory alone", f"{asked_ms * 1e3:.0f}"],
        ["exists, pinned at the segment", f"{pinned_ms * 1e3:.0f}"],
        ["get of the pinned pages (64 KiB)", f"{get_ms * 1e3:.0f}"],
    ]
    return Table(f"{BATCH} present pages over TCP", ["call", "us"], rows)
