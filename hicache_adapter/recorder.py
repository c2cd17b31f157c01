"""What the backend has loaded and stored: counters for people, and the samples that SGLang's storage metrics are
made of.
"""

import threading
from collections import deque
from typing import Any

COUNTED = (
    *("pages_asked", "pages_found"),
    *("pages_loaded", "pages_missed", "bytes_loaded"),
    *("pages_stored", "pages_refused", "bytes_stored"),
)
_ASKED, _LOADED, _STORED = 0, 2, 5  # where each of those begins
SAMPLES_MAX = 1024


class Recorder:
    """Counters by pool, which only grow; and pages and bandwidth of each timed batch since the last drain, of which the
    oldest go when nobody drains. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, list[int]] = {}  # in the order of COUNTED
        self._prefetch: deque[tuple[int, float]] = deque(maxlen=SAMPLES_MAX)
        self._backup: deque[tuple[int, float]] = deque(maxlen=SAMPLES_MAX)

    def watch(self, pool: str) -> None:
        """Makes the pool's counters show up, at 0."""
        with self._lock:
            self._of(pool)

    def asked(self, pool: str, pages: int, found: int) -> None:
        """A query: how many pages it was about, and how many of them from the first on are there."""
        with self._lock:
            counts = self._counts.get(pool) or self._of(pool)
            counts[_ASKED] += pages
            counts[_ASKED + 1] += found

    def loaded(self, pool: str, answers: list[bool], page_bytes: int, seconds: float = 0.0) -> None:
        """A get: one truth a page. `seconds`: what it took, where it is to be a sample."""
        self._add(pool, _LOADED, answers, page_bytes, self._prefetch, seconds)

    def stored(self, pool: str, answers: list[bool], page_bytes: int, seconds: float = 0.0) -> None:
        """A set: one truth a page; pages that were there already count as stored."""
        self._add(pool, _STORED, answers, page_bytes, self._backup, seconds)

    def _add(
        self,
        pool: str,
        first: int,
        answers: list[bool],
        page_bytes: int,
        samples: deque[tuple[int, float]],
        seconds: float,
    ) -> None:
        done = answers.count(True)
        with self._lock:
            counts = self._counts.get(pool) or self._of(pool)
            counts[first] += done
            counts[first + 1] += len(answers) - done
            counts[first + 2] += done * page_bytes
            if done and seconds > 0:
                samples.append((done, done * page_bytes / seconds / 1e9))

    def _of(self, pool: str) -> list[int]:
        return self._counts.setdefault(pool, [0] * len(COUNTED))

    def counters(self) -> dict[str, int]:
        """`{pool}_{counter}` -> count."""
        with self._lock:
            return {
                f"{pool}_{name}": count
                for pool, counts in self._counts.items()
                for name, count in zip(COUNTED, counts, strict=True)
            }

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
