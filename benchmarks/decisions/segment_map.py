"""0003, the map is pulled: what a pull costs, and how often one happens."""

from __future__ import annotations

from benchmarks.decisions.base import (
    DEADLINE_MS,
    Batch,
    Table,
    fresh_keys,
    hashes,
    median_ms,
    running_store,
    tcp_client,
)
from kvstore_client import Client

CALLS = 1000


def measure(repetitions: int) -> Table:
    """The first exists of a new client (connect, open, map) beside a later one, and pulls a thousand calls."""
    with running_store(128 << 20) as masters:
        with tcp_client(masters) as client:
            pages = client.namespace("map").pages()
            keys = fresh_keys(16)
            batch = Batch(16, 4096)
            pages.put_pieces(hashes(keys), batch.pieces, deadline_ms=DEADLINE_MS)
            before = client.stats()["map_refreshes"]
            later_ms = median_ms(lambda: pages.batch_exists(keys), CALLS)
            pulls = client.stats()["map_refreshes"] - before

        def first() -> None:
            with Client(masters, same_host=False, deadline_ms=DEADLINE_MS) as fresh:
                fresh.namespace("map").pages().batch_exists(keys)

        first_ms = median_ms(first, repetitions * 3)
    rows = [
        ["a new client's first exists: connect, open, map, look up, pin", f"{first_ms * 1e3:.0f} us"],
        ["exists of a client that has the map", f"{later_ms * 1e3:.0f} us"],
        [f"pulls in {CALLS} calls", str(pulls)],
        ["bytes that the epoch adds to a reply", "8"],
    ]
    return Table("16 present pages, one segment", ["what", "figure"], rows)
