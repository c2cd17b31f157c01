"""What the backend has loaded and stored: counters by pool, and the samples behind SGLang's storage metrics."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from hicache_adapter.recorder import SAMPLES_MAX, Recorder


def empty_metrics() -> SimpleNamespace:
    return SimpleNamespace(prefetch_pgs=[], prefetch_bandwidth=[], backup_pgs=[], backup_bandwidth=[])


def test_hits_misses_and_bytes_are_counted_by_pool() -> None:
    recorder = Recorder()
    recorder.watch("kv")
    recorder.loaded("swa", [True, False, True], 100)
    recorder.stored("swa", [True], 100)
    recorder.stored("swa", [False, True], 100)
    counted = recorder.counters()
    assert {name: count for name, count in counted.items() if count} == {
        "swa_pages_loaded": 2,
        "swa_pages_missed": 1,
        "swa_bytes_loaded": 200,
        "swa_pages_stored": 2,
        "swa_pages_refused": 1,
        "swa_bytes_stored": 200,
    }
    assert counted["kv_pages_loaded"] == 0  # shows up before anything has happened


def test_each_sample_is_handed_out_once() -> None:
    recorder = Recorder()
    recorder.loaded("kv", [True, True, True, False], 500_000_000, 0.5)
    recorder.stored("kv", [True] * 5, 200_000_000, 2.0)
    first, second = recorder.drain_into(empty_metrics()), recorder.drain_into(empty_metrics())
    assert (first.prefetch_pgs, first.prefetch_bandwidth) == ([3], [3.0])
    assert (first.backup_pgs, first.backup_bandwidth) == ([5], [0.5])
    assert second == empty_metrics()


def test_batches_that_moved_nothing_or_were_not_timed_leave_no_sample() -> None:
    recorder = Recorder()
    recorder.loaded("kv", [False], 10, 0.1)
    recorder.stored("swa", [True], 10)
    assert recorder.drain_into(empty_metrics()) == empty_metrics()


def test_samples_are_bounded_when_nobody_drains() -> None:
    recorder = Recorder()
    for pages in range(1, SAMPLES_MAX + 100):
        recorder.stored("kv", [True] * (pages % 1000), 1, 1.0)
    recorder.stored("kv", [True] * 3, 1, 1.0)
    kept = recorder.drain_into(empty_metrics()).backup_pgs
    assert len(kept) == SAMPLES_MAX
    assert kept[-1] == 3  # the newest stay


def test_threads_lose_nothing() -> None:
    recorder = Recorder()
    threads = [
        threading.Thread(target=lambda: [recorder.loaded("kv", [True], 1, 1.0) for _ in range(100)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert recorder.counters()["kv_pages_loaded"] == 800
    assert len(recorder.drain_into(empty_metrics()).prefetch_pgs) == 800
