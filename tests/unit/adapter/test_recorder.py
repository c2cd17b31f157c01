"""The samples behind SGLang's storage metrics."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from hicache_adapter.stats import SAMPLES_MAX, StatsCollector


def empty_metrics() -> SimpleNamespace:
    return SimpleNamespace(prefetch_pgs=[], prefetch_bandwidth=[], backup_pgs=[], backup_bandwidth=[])


def test_each_sample_is_handed_out_once() -> None:
    stats = StatsCollector()
    stats.prefetched(3, 2_000_000_000, 0.5)
    stats.backed_up(5, 1_000_000_000, 2.0)
    first, second = stats.drain_into(empty_metrics()), stats.drain_into(empty_metrics())
    assert (first.prefetch_pgs, first.prefetch_bandwidth) == ([3], [4.0])
    assert (first.backup_pgs, first.backup_bandwidth) == ([5], [0.5])
    assert second == empty_metrics()


def test_empty_batches_leave_no_sample() -> None:
    stats = StatsCollector()
    stats.prefetched(0, 0, 0.1)
    stats.backed_up(1, 10, 0.0)
    assert stats.drain_into(empty_metrics()) == empty_metrics()


def test_samples_are_bounded_when_nobody_drains() -> None:
    stats = StatsCollector()
    for pages in range(1, SAMPLES_MAX + 100):
        stats.backed_up(pages, 1, 1.0)
    kept = stats.drain_into(empty_metrics()).backup_pgs
    assert len(kept) == SAMPLES_MAX
    assert kept[-1] == SAMPLES_MAX + 99  # the newest stay


def test_threads_lose_no_sample() -> None:
    stats = StatsCollector()
    threads = [
        threading.Thread(target=lambda: [stats.prefetched(1, 1, 1.0) for _ in range(100)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(stats.drain_into(empty_metrics()).prefetch_pgs) == 800
