"""0002, a shard is a rectangle: what it costs to cut a page into head groups."""

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
from kvstore_client.keys import Shard

PAGES = 64
PAGE_BYTES = 1 << 20


def measure(repetitions: int) -> Table:
    """Put and get of 64 pages of 1 MiB over TCP, each page as 1, 2, 4 and 8 objects."""
    rows = []
    with running_store(1 << 30) as masters, tcp_client(masters) as client:
        for groups in (1, 2, 4, 8):
            shards = [Shard(0, 32, group, groups) for group in range(groups)]
            pages = client.namespace(f"shards-{groups}").pages(shards=shards)
            batch = Batch(PAGES * groups, PAGE_BYTES // groups)
            keys: list[str] = []

            def renew(keys: list[str] = keys) -> None:
                keys[:] = fresh_keys(PAGES)

            def put(pages=pages, batch=batch, keys=keys) -> None:  # type: ignore[no-untyped-def]
                pages.put_pieces(hashes(keys), batch.pieces, deadline_ms=DEADLINE_MS)

            def get(pages=pages, batch=batch, keys=keys) -> None:  # type: ignore[no-untyped-def]
                pages.get_pieces(hashes(keys), batch.pieces, deadline_ms=DEADLINE_MS)

            put_ms = median_ms(put, repetitions, before=renew)
            get_ms = median_ms(get, repetitions)
            gigabytes = PAGES * PAGE_BYTES / 1e9
            rows.append(
                [str(groups), f"{PAGE_BYTES // groups >> 10} KiB"]
                + [f"{gigabytes / ms * 1e3:.2f}" for ms in (put_ms, get_ms)]
            )
    return Table(
        "64 pages of 1 MiB over TCP, each cut into head groups",
        ["objects a page", "object", "put GB/s", "get GB/s"],
        rows,
    )
