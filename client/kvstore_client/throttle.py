"""Logging from paths that may fail thousands of times a second."""

import logging
import threading
import time


class ThrottledLog:
    """Lets one message per topic and interval through and says how many it swallowed. Thread-safe."""

    _TOPICS_MAX = 256

    def __init__(self, logger: logging.Logger, interval_s: float = 30.0) -> None:
        self._logger = logger
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._topics: dict[str, tuple[float, int]] = {}  # topic -> (when last logged, swallowed since)

    def log(
        self, level: int, topic: str, message: str, *args: object, exc_info: bool | BaseException = False
    ) -> None:
        """Logs `message % args` unless the topic has been logged less than an interval ago."""
        now = time.monotonic()
        with self._lock:
            last, swallowed = self._topics.get(topic, (float("-inf"), 0))
            if now - last < self._interval_s:
                self._topics[topic] = (last, swallowed + 1)
                return
            if len(self._topics) >= self._TOPICS_MAX:
                self._topics.clear()
            self._topics[topic] = (now, 0)
        if swallowed:
            message += " (and %d more like it)"
            args = (*args, swallowed)
        self._logger.log(level, message, *args, exc_info=exc_info)
