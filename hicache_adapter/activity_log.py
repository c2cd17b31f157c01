"""What a rank has had of the store, one line now and then in the engine's log: where an operator looks first who wonders
why nothing is hit.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

logger = logging.getLogger("hicache_adapter")

INTERVAL_S = 60.0


class ActivityLog:
    """Asked after every call, which costs a comparison; speaks once an interval, and only where something has
    happened. Thread-safe.
    """

    def __init__(
        self,
        rank: str,
        counters: Callable[[], Mapping[str, Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`counters`: those of the backend, which only grow, and `troubles`."""
        self._rank = rank
        self._counters = counters
        self._clock = clock
        self._lock = threading.Lock()
        self._since = clock()
        self._due = self._since + INTERVAL_S
        self._last: Mapping[str, Any] = {}

    def is_due(self) -> bool:
        """Whether it is time to speak."""
        return self._clock() >= self._due

    def speak(self) -> None:
        """What has happened since the last line; nothing when nothing has."""
        with self._lock:
            now, counters = self._clock(), self._counters()
            seconds, self._since, self._due = now - self._since, now, now + INTERVAL_S
            last, self._last = self._last, counters
        grown = {
            name: count - last.get(name, 0)
            for name, count in counters.items()
            if isinstance(count, int) and count != last.get(name, 0)
        }
        if any(name.endswith(("_pages_asked", *_LOADED, *_STORED)) for name in grown):
            troubles = "; ".join(map(str, counters.get("troubles", {}).values())) or "none"
            logger.info(
                "kvstore: %s: %.0f s: %s; troubles: %s", self._rank, seconds, summary(grown), troubles
            )


_LOADED = ("_pages_loaded", "_pages_missed")
_STORED = ("_pages_stored", "_pages_refused")


def summary(grown: Mapping[str, int]) -> str:
    """Counters by pool, as people say it."""
    pools = dict.fromkeys(name.partition("_pages_")[0] for name in grown if "_pages_" in name)

    def of(pool: str) -> str:
        pages = {
            name.removeprefix(f"{pool}_pages_"): count
            for name, count in grown.items()
            if name.startswith(f"{pool}_pages_")
        }
        read, written = grown.get(f"{pool}_bytes_loaded", 0), grown.get(f"{pool}_bytes_stored", 0)
        return (
            f"{pool} pages: asked for {pages.get('asked', 0)}, there {pages.get('found', 0)}; "
            f"loaded {pages.get('loaded', 0)} ({read / 1e6:.1f} MB), missed {pages.get('missed', 0)}; "
            f"stored {pages.get('stored', 0)} ({written / 1e6:.1f} MB), refused {pages.get('refused', 0)}"
        )

    return "; ".join(map(of, pools))
