"""0011, side pools are namespaces: what each further pool costs a query."""

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
    """Existence of a batch of pages in one, two and three pools, one pool after the other."""
    rows = []
    with running_store(512 << 20) as masters, tcp_client(masters) as client:
        pools = [client.namespace(f"pool-{number}").pages() for number in range(3)]
        keys = fresh_keys(BATCH)
        batch = Batch(BATCH, 4096)
        for pool in pools:
            pool.put_pieces(hashes(keys), batch.pieces, deadline_ms=DEADLINE_MS)
        for count in (1, 2, 3):

            def ask(count: int = count) -> None:
                for pool in pools[:count]:
                    pool.batch_exists(keys, pin_ms=10_000)

            rows.append([str(count), f"{median_ms(ask, repetitions * 20) * 1e3:.0f}"])
    return Table(f"exists of {BATCH} present pages, pinned", ["pools", "us"], rows)
