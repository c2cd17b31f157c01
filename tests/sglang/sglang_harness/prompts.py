"""Backs a whole prompt up, node by node as SGLang's tree does, and loads it again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from sglang_harness.pool_pages import fill_pages, page_bytes
from sglang_harness.prefetched import Prefetched

if TYPE_CHECKING:
    from sglang_harness.engine import Engine


@dataclass
class WrittenPrompt:
    """What went to the storage backend."""

    slots: Any
    hashes: list[str] = field(default_factory=list)
    stored_tokens: int = 0
    side_pages: dict[str, dict[int, list[bytes]]] = field(default_factory=dict)
    """By pool and by the prefix (in pages) that they end: the bytes of the pages."""


def write_prompt(engine: Engine) -> WrittenPrompt:
    """Random pages for the case's prompt. At the end of each node its window of every side pool is backed up
    too; pools that follow KV are backed up page by page.
    """
    case = engine.case
    page_size = case.page_size
    written = WrittenPrompt(engine.host_pool.alloc(case.pages * page_size))
    engine.fill(written.slots, case.seed)
    for number, (name, pool) in enumerate(engine.side_host_pools.items()):
        if engine.sources[name] == "kv":
            fill_pages(pool, written.slots, case.seed + 100 + number)
    start = 0
    for end in case.node_ends:

        def side_pages(hashes: list[str], end: int = end) -> list[Any]:
            return _node_side_pages(engine, written, written.hashes + hashes, end)

        slots = written.slots[start * page_size : end * page_size]
        hashes, stored = engine.backup(
            slots,
            case.tokens[start * page_size : end * page_size],
            last_hash=written.hashes[-1] if written.hashes else None,
            side_pages=side_pages if engine.sources else None,
        )
        written.hashes += hashes
        written.stored_tokens += stored
        for name, pool in engine.side_host_pools.items():
            if engine.sources[name] == "kv":
                written.side_pages.setdefault(name, {})[end] = page_bytes(
                    pool, written.slots[: end * page_size]
                )
        start = end
    return written


def _node_side_pages(engine: Engine, written: WrittenPrompt, hashes: list[str], end: int) -> list[Any]:
    from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

    transfers = []
    windows: dict[str, Any] = {}  # by pool that has slots of its own, those of its window
    for number, (name, pool) in enumerate(engine.side_host_pools.items()):
        source = engine.sources[name]
        if source == "kv":
            transfers.append(PoolTransfer(PoolName(name), indices_from_pool=PoolName.KV))
            continue
        keys = hashes[-engine.case.window(source or name) :]
        slots = windows[source] if source else pool.alloc(len(keys) * pool.page_size)
        windows[name] = slots
        fill_pages(pool, slots, engine.case.seed + 1000 * (number + 1) + end)
        written.side_pages.setdefault(name, {})[end] = page_bytes(pool, slots)
        transfers.append(
            PoolTransfer(
                PoolName(name),
                host_indices=None if source else slots,
                keys=keys,
                hit_policy=PoolHitPolicy.TRAILING_PAGES,
                indices_from_pool=PoolName(source) if source else None,
            )
        )
    return transfers


def read_prompt(engine: Engine) -> tuple[Prefetched, dict[str, list[bytes]]]:
    """Prefetches the case's prompt into pools that start empty; (what came, the loaded pages of side pools)."""
    engine.wipe()
    # So that pages land elsewhere than in the writer.
    holes = [(engine.host_pool, 3 * engine.case.page_size)]
    holes += [
        (pool, 3 * pool.page_size)
        for name, pool in engine.side_host_pools.items()
        if not engine.sources[name]
    ]
    for pool, slots in holes:
        pool.alloc(slots)
    got = engine.prefetch(engine.case.tokens)
    side_pages = {
        name: page_bytes(engine.side_host_pools[name], indices)
        for name, indices in got.side_indices.items()
        if isinstance(indices, torch.Tensor)
    }
    return got, side_pages
