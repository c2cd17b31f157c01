"""0008, same key, other bytes: what it saves not to send what is there."""

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
    """A put of pages that are absent beside one of pages that are there."""
    rows = []
    with running_store(2 << 30) as masters, tcp_client(masters) as client:
        pages = client.namespace("present").pages()
        for size_bytes in (64 << 10, 1 << 20):
            batch = Batch(BATCH, size_bytes)
            keys: list[str] = []

            def renew(keys: list[str] = keys) -> None:
                keys[:] = fresh_keys(BATCH)

            def put(batch: Batch = batch, keys: list[str] = keys) -> None:
                pages.put_pieces(hashes(keys), batch.pieces, deadline_ms=DEADLINE_MS)

            absent_ms = median_ms(put, repetitions, before=renew)
            present_ms = median_ms(put, repetitions)
            rows.append(
                [
                    f"{size_bytes >> 10} KiB",
                    f"{absent_ms:.2f}",
                    f"{present_ms:.3f}",
                    f"{absent_ms / present_ms:.0f}",
                ]
            )
    return Table(
        f"put of {BATCH} pages over TCP", ["page", "absent, ms", "present, ms", "times as fast"], rows
    )
