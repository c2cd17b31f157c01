"""What the adapter adds to a batch: time beyond the native client's call, and for how long it holds the interpreter lock.

SGLang's scheduler is Python: while a storage thread holds the lock, no step of the engine is prepared. It is held wherever the
call is not inside the native client, which gives it up at once. How long is told by the calling thread's own processor time: the
clock on the wall also counts what other processes do on a busy machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo
from sglang_harness.case import Case
from sglang_harness.engine import Engine

PAGES = 128
CASES = {
    "page_first": Case(pages=PAGES, layers=8, heads=4, head_dim=64),
    "layer_first": Case(pages=PAGES, layers=32, heads=2, head_dim=32, layout="layer_first"),
    "MLA page_first": Case(pages=PAGES, layers=8, heads=1, head_dim=64, kind="mla"),
}
HEAD = (
    "pool",
    "call",
    "whole call, us",
    "of it the adapter, us",
    "lock held, us of processor time",
    "in the best tenth",
)


class TimedNative:
    """The native client, with clocks around each call."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self.seconds = self.cpu_seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._native, name)
        if name not in ("exists", "get", "put"):
            return found

        def timed(*arguments: Any) -> Any:
            started, cpu_started = time.perf_counter(), time.thread_time()
            try:
                return found(*arguments)
            finally:
                self.cpu_seconds += time.thread_time() - cpu_started
                self.seconds += time.perf_counter() - started

        return timed


def measure(masters: str, repetitions: int) -> list[Sequence[str]]:
    """Rows of the table."""
    rows: list[Sequence[str]] = []
    for pool, case in CASES.items():
        options = {
            "masters": masters,
            "deadline_ms": 5000,
            "tag": os.urandom(4).hex(),
            "scheduler_deadline_ms": 5000,
        }
        with Engine(Case(**{**case.to_json(), "options": options})) as engine:
            rows += [(pool, *row) for row in _of_engine(engine, repetitions)]
    return rows


def _of_engine(engine: Engine, repetitions: int) -> list[Sequence[str]]:
    backend = engine.backend
    slots = engine.host_pool.alloc(PAGES * engine.case.page_size)
    told = HiCacheStorageExtraInfo(prefix_keys=["0" * 64] * 64)

    def fresh() -> list[str]:
        return [os.urandom(32).hex() for _ in range(PAGES)]

    stored = fresh()
    assert all(backend.batch_set_v1(stored, slots, told))
    calls: dict[str, tuple[Callable[[], list[str]], Callable[[list[str]], object]]] = {
        "exists": (lambda: stored, lambda keys: backend.batch_exists(keys, told) == PAGES),
        "get": (lambda: stored, lambda keys: all(backend.batch_get_v1(keys, slots, told))),
        "set": (fresh, lambda keys: all(backend.batch_set_v1(keys, slots, told))),
    }
    native = TimedNative(backend._client._native)
    rows: list[Sequence[str]] = []
    for name, (keys_of, call) in calls.items():
        wholes: list[float] = []
        extras: list[float] = []
        held: list[float] = []
        backend._client._native = native
        for _ in range(repetitions + 1):
            keys = keys_of()
            native.seconds = native.cpu_seconds = 0.0
            started, cpu_started = time.perf_counter(), time.thread_time()
            ok = call(keys)
            whole, cpu = time.perf_counter() - started, time.thread_time() - cpu_started
            assert ok, name
            wholes.append(whole * 1e6)
            extras.append((whole - native.seconds) * 1e6)
            held.append((cpu - native.cpu_seconds) * 1e6)
        backend._client._native = native._native
        figures = [median(values[1:]) for values in (wholes, extras, held)]
        figures.append(
            sorted(held[1:])[repetitions // 10]
        )  # caches not emptied by others, as on an idle machine
        rows.append((name, *(f"{figure:.0f}" for figure in figures)))
    return rows
