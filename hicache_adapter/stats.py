"""The samples that SGLang's storage metrics are made of."""

import threading
from collections import deque
from typing import Any

SAMPLES_MAX = 1024


class StatsCollector:
    """Pages and bandwidth of each batch since the last drain; the oldest samples go when nobody
    drains. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prefetch: deque[tuple[int, float]] = deque(maxlen=SAMPLES_MAX)
        self._backup: deque[tuple[int, float]] = deque(maxlen=SAMPLES_MAX)

    def prefetched(self, pages: int, size_bytes: int, seconds: float) -> None:
        """A batch that was read from the store."""
        self._add(self._prefetch, pages, size_bytes, seconds)

    def backed_up(self, pages: int, size_bytes: int, seconds: float) -> None:
        """A batch that was written to the store."""
        self._add(self._backup, pages, size_bytes, seconds)

    def _add(self, samples: deque[tuple[int, float]], pages: int, size_bytes: int, seconds: float) -> None:
        if pages > 0 and seconds > 0:
            with self._lock:
                samples.append((pages, size_bytes / seconds / 1e9))

    def drain_into(self, metrics: Any) -> Any:
        """Moves all samples into a StorageMetrics (lists of pages, lists of GB/s) and returns it."""
        with self._lock:
            prefetch, backup = list(self._prefetch), list(self._backup)
            self._prefetch.clear()
            self._backup.clear()
        metrics.prefetch_pgs.extend(pages for pages, _ in prefetch)
        metrics.prefetch_bandwidth.extend(rate for _, rate in prefetch)
        metrics.backup_pgs.extend(pages for pages, _ in backup)
        metrics.backup_bandwidth.extend(rate for _, rate in backup)
        return metrics
