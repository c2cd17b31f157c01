"""Logging of the servers: one line an event on stderr, as JSON or text, fields attached by `log_event`. It never blocks
(`kvstore.common.log_writer`)."""

from __future__ import annotations

import atexit
import json
import logging
import math
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal

from kvstore.common.log_writer import LogWriter, QueueHandler, write_all

logger = logging.getLogger(__name__)

LogFormat = Literal["json", "text"]

REPEAT_S = 60.0
REPEATED_KEYS_MAX = 1024


STDERR = 2
# How long a last word to people waits for a stderr that nobody reads.
LAST_WORDS_TIMEOUT_S = 0.5

_writer: LogWriter | None = None


def configure_logging(level: str, log_format: LogFormat) -> None:
    """Replaces the root handlers; what ends the process or a thread by an exception is logged, too. The first call starts the
    thread that writes; what is queued when the process ends is flushed, for half a second at most."""
    formatter: logging.Formatter = JsonFormatter() if log_format == "json" else TextFormatter()
    handler: logging.Handler
    if _stderr_fd() is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        handler = QueueHandler(_the_writer(formatter))
        sys.excepthook = _log_crash
        threading.excepthook = lambda args: _log_crash(args.exc_type, args.exc_value, args.exc_traceback)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def flush_logs() -> None:
    """Waits until what was logged is out, for a moment at most."""
    if _writer is not None:
        _writer.flush()


def log_lines_lost() -> int:
    """How many lines were left out because nobody read the log fast enough, since the start."""
    return _writer.lost if _writer is not None else 0


def tell(text: str) -> None:
    """A line on stderr for people, after what was logged; left out when nobody reads it within half a second."""
    flush_logs()
    fd = _stderr_fd()
    if fd is None:
        print(text, file=sys.stderr)
        return
    try:
        write_all(fd, f"{text}\n".encode("utf-8", "backslashreplace"), LAST_WORDS_TIMEOUT_S)
    except OSError:
        return  # nobody is there to be told


def _stderr_fd() -> int | None:
    """None when somebody has put a buffer in its place."""
    try:
        return sys.stderr.fileno()
    except (OSError, ValueError):
        return None


def _the_writer(formatter: logging.Formatter) -> LogWriter:
    global _writer
    if _writer is None:
        _writer = LogWriter(STDERR, lambda lost: formatter.format(_lost(lost)))
        atexit.register(flush_logs)
    return _writer


def _lost(lines: int) -> logging.LogRecord:
    record = logger.makeRecord(
        logger.name,
        logging.WARNING,
        __file__,
        0,
        "log_lines_dropped",
        (),
        None,
        extra={"fields": {"lines": lines}},
    )
    return record


def _log_crash(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    shown = (kind, error, trace) if error is not None else None
    logger.critical("crashed", exc_info=shown, extra={"fields": {"error": repr(error)}})
    flush_logs()


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
