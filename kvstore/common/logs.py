"""Logging of the servers: one line an event on stderr, as JSON or text, fields attached by `log_event`."""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal

LogFormat = Literal["json", "text"]

REPEAT_S = 60.0
REPEATED_KEYS_MAX = 1024


def configure_logging(level: str, log_format: LogFormat) -> None:
    """Replaces the root handlers; call once a process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def log_event(
    logger: logging.Logger, level: int, event: str, *, exc_info: BaseException | None = None, **fields: Any
) -> None:
    """`event` is constant text, so that it can be searched for; everything that varies is a field. Bytes
    show as hex."""
    if logger.isEnabledFor(level):
        shown = {key: value.hex() if isinstance(value, bytes) else value for key, value in fields.items()}
        logger.log(level, event, exc_info=exc_info, extra={"fields": shown})


class LogThrottle:
    """Lets through what an event has to say of `key` (a peer's host, a master, a store) once in `interval_s`, and knows how many
    were left out. Bounded: more keys than `keys_max` in one interval share a place for each event. Thread-safe."""

    def __init__(
        self,
        interval_s: float = REPEAT_S,
        keys_max: int = REPEATED_KEYS_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_s = interval_s
        self._keys_max = keys_max
        self._clock = clock
        self._lock = threading.Lock()
        # (logger, event, key) -> (when it was let through, how many were left out since), the oldest first
        self._said: OrderedDict[tuple[str, str, str], tuple[float, int]] = OrderedDict()
        self._said_of_others: dict[tuple[str, str], tuple[float, int]] = {}

    def passes(self, logger: str, event: str, key: str) -> int | None:
        """How many were left out before this one; None: leave out this one too."""
        with self._lock:
            now = self._clock()
            place = (logger, event, key)
            if place not in self._said and not self._has_room(now):
                others = (logger, event)
                since, left_out = self._said_of_others.get(others, (-math.inf, 0))
                passes = now - since >= self._interval_s
                self._said_of_others[others] = (now, 0) if passes else (since, left_out + 1)
                return left_out if passes else None
            since, left_out = self._said.get(place, (-math.inf, 0))
            if now - since < self._interval_s:
                self._said[place] = since, left_out + 1
                return None
            self._said[place] = now, 0
            self._said.move_to_end(place)
            return left_out

    def _has_room(self, now: float) -> bool:
        while self._said and now - next(iter(self._said.values()))[0] >= self._interval_s:
            if len(self._said) < self._keys_max:
                return True  # what was left out is still to be told
            self._said.popitem(last=False)
        return len(self._said) < self._keys_max


_throttle = LogThrottle()


def log_throttled(logger: logging.Logger, level: int, event: str, key: str, **fields: Any) -> None:
    """log_event for what a stranger, or a peer that is away, can make happen again and again: at once the first time, then at most
    once a minute for each `key`, with how many lines were left out before (`repeated`). An error that is being handled shows
    its traceback from the level CRITICAL on."""
    if logger.isEnabledFor(level) and (left_out := _throttle.passes(logger.name, event, key)) is not None:
        if left_out:
            fields["repeated"] = left_out
        log_event(logger, level, event, **fields)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        return super().format(record) + "".join(f" {key}={value}" for key, value in fields.items())
