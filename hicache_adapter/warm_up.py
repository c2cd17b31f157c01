"""What SGLang and the store would otherwise do within the first request: done when a backend is attached, beside
everything else.

SGLang compiles its page-hash extension in the thread that prefetches, on a machine whose cache is fresh for half a minute.
For that long nothing can be prefetched, and a flush waits 10 s for that thread and then ends the scheduler.
"""

import importlib
import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("hicache_adapter")

SLOW_S = 2.0
"""From here on the log says what took so long."""

_HASH_MODULES = ("sglang.srt.mem_cache.utils", "sglang.srt.mem_cache.hicache_storage")  # newer first


def warm_up(connect: Callable[[], object]) -> threading.Thread:
    """Begins it on a thread of its own, which ends by itself and keeps nothing from ending. `connect`: greets the
    store.
    """

    def run() -> None:
        for what, work in (
            ("connecting to the store", connect),
            ("SGLang's page-hash extension", hash_one_page),
        ):
            started = time.monotonic()
            try:
                work()
            except Exception as error:
                logger.warning("kvstore: warm-up: %s failed, the first request tries again: %s", what, error)
            else:
                seconds = time.monotonic() - started
                if seconds > SLOW_S:
                    logger.info("kvstore: warm-up: %s took %.1f s", what, seconds)

    thread = threading.Thread(target=run, name="kvstore-warm-up", daemon=True)
    thread.start()
    return thread


def hash_one_page() -> None:
    """Has SGLang load its hash extension, and compile it where that was never done on this machine."""
    for module_name in _HASH_MODULES:
        hash_pages = getattr(importlib.import_module(module_name), "get_hash_str", None)
        if hash_pages is not None:
            hash_pages([0], None)
            return
