"""What each pool of the model has loaded and stored, for people."""

import threading

COUNTED = ("pages_loaded", "pages_missed", "bytes_loaded", "pages_stored", "pages_refused", "bytes_stored")


class PoolCounters:
    """Counters by pool name; they only grow. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def loaded(self, pool: str, answers: list[bool], page_bytes: int) -> None:
        """A get: one truth a page."""
        self._add(pool, ("pages_loaded", "pages_missed", "bytes_loaded"), answers, page_bytes)

    def stored(self, pool: str, answers: list[bool], page_bytes: int) -> None:
        """A set: one truth a page; pages that were there already count as stored."""
        self._add(pool, ("pages_stored", "pages_refused", "bytes_stored"), answers, page_bytes)

    def _add(self, pool: str, names: tuple[str, str, str], answers: list[bool], page_bytes: int) -> None:
        done = sum(answers)
        with self._lock:
            for name, more in zip(names, (done, len(answers) - done, done * page_bytes), strict=True):
                self._counts[f"{pool}_{name}"] = self._counts.get(f"{pool}_{name}", 0) + more

    def watch(self, pool: str) -> None:
        """Makes the pool's counters show up, at 0."""
        with self._lock:
            for name in COUNTED:
                self._counts.setdefault(f"{pool}_{name}", 0)

    def snapshot(self) -> dict[str, int]:
        """`{pool}_{counter}` -> count."""
        with self._lock:
            return dict(self._counts)
