"""What each pool has loaded and stored."""

from __future__ import annotations

import threading

from hicache_adapter.pool_counters import PoolCounters


def test_hits_misses_and_bytes_are_counted_by_pool() -> None:
    counters = PoolCounters()
    counters.watch("kv")
    counters.loaded("swa", [True, False, True], 100)
    counters.stored("swa", [True], 100)
    counters.stored("swa", [False, True], 100)
    counted = counters.snapshot()
    assert {name: count for name, count in counted.items() if count} == {
        "swa_pages_loaded": 2,
        "swa_pages_missed": 1,
        "swa_bytes_loaded": 200,
        "swa_pages_stored": 2,
        "swa_pages_refused": 1,
        "swa_bytes_stored": 200,
    }
    assert counted["kv_pages_loaded"] == 0  # shows up before anything has happened


def test_threads_lose_no_count() -> None:
    counters = PoolCounters()
    threads = [
        threading.Thread(target=lambda: [counters.loaded("kv", [True], 1) for _ in range(200)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert counters.snapshot()["kv_pages_loaded"] == 1600
