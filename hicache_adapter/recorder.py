"""What the backend has loaded and stored: counters for people, and the samples that SGLang's storage metrics are
made of.
"""

import threading
from collections import deque
from typing import Any

_LOADED = ("pages_loaded", "pages_missed", "bytes_loaded")
_STORED = ("pages_stored", "pages_refused", "bytes_stored")
_ASKED = ("pages_asked", "pages_found")
COUNTED = (*_ASKED, *_LOADED, *_STORED)
SAMPLES_MAX = 1024


class Recorder:
    """Counters by pool, which only grow; and pages and bandwidth of each timed batch since the last drain, of which the
    oldest go when nobody drains. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, int]] = {}
        self._prefetch: deque[tuple[int, float]] = deque(maxlen=SAMPLES_MAX)
        self._backup: deque[tuple[int, float]] = deque(maxlen=SAMPLES_MAX)

    def watch(self, pool: str) -> None:
        """Makes the pool's counters show up, at 0."""
        with self._lock:
            self._count(pool, COUNTED, (0,) * len(COUNTED))

    def asked(self, pool: str, pages: int, found: int) -> None:
        """A query: how many pages it was about, and how many of them from the first on are there."""
        with self._lock:
            self._count(pool, _ASKED, (pages, found))

    def loaded(self, pool: str, answers: list[bool], page_bytes: int, seconds: float = 0.0) -> None:
        """A get: one truth a page. `seconds`: what it took, where it is to be a sample."""
        self._add(pool, _LOADED, answers, page_bytes, self._prefetch, seconds)

    def stored(self, pool: str, answers: list[bool], page_bytes: int, seconds: float = 0.0) -> None:
        """A set: one truth a page; pages that were there already count as stored."""
        self._add(pool, _STORED, answers, page_bytes, self._backup, seconds)

    def _add(
        self,
        pool: str,
        names: tuple[str, ...],
        answers: list[bool],
        page_bytes: int,
        samples: deque[tuple[int, float]],
        seconds: float,
    ) -> None:
        done = answers.count(True)
        with self._lock:
            self._count(pool, names, (done, len(answers) - done, done * page_bytes))
            if done and seconds > 0:
                samples.append((done, done * page_bytes / seconds / 1e9))

    def _count(self, pool: str, names: tuple[str, ...], more: tuple[int, ...]) -> None:
        counts = self._counts.setdefault(pool, {})
        for name, number in zip(names, more, strict=True):
            counts[name] = counts.get(name, 0) + number

    def counters(self) -> dict[str, int]:
        """`{pool}_{counter}` -> count."""
        with self._lock:
            return {
                f"{pool}_{name}": count
                for pool, counts in self._counts.items()
                for name, count in counts.items()
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
