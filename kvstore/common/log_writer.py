"""Writes log lines to a descriptor from a thread of its own, so that nobody who logs waits for who reads the log.

A pipe that nobody reads, a terminal that is stopped, or a log driver that hangs blocks a write for ever. So lines are
queued, the queue has a bound, and what does not fit is left out and counted.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

LINES_MAX = 10_000
BYTES_MAX = 4 << 20
# A longer line is cut: one traceback must not push out all the others.
LINE_BYTES_MAX = 64 << 10
# What a process that ends gives its last lines.
FLUSH_TIMEOUT_S = 0.5
# A pipe that polls as writable takes so much without blocking (PIPE_BUF).
_PIECE_BYTES = 4096


class LogWriter:
    """A bounded queue in front of `fd`. Thread-safe; writing never blocks the caller. `lost_line` makes the line that says
    how many were left out, which is written as soon as lines flow again."""

    def __init__(
        self,
        fd: int,
        lost_line: Callable[[int], str],
        *,
        lines_max: int = LINES_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._fd = fd
        self._lost_line = lost_line
        self._lines_max = lines_max
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._bytes = 0  # of the lines that wait, and of the one being written
        self._writing = False
        self._lost_untold = 0
        self._broken = False
        self.lost = 0
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queues a line, without its end; or counts it, when there is no room."""
        data = _encoded(line)
        with self._changed:
            if self._broken:
                return
            if len(self._lines) >= self._lines_max or self._bytes + len(data) > self._bytes_max:
                self.lost += 1
                self._lost_untold += 1
                return
            self._lines.append(data)
            self._bytes += len(data)
            self._changed.notify_all()

    def flush(self, timeout_s: float = FLUSH_TIMEOUT_S) -> bool:
        """Whether everything that was queued is out; waits so long at most."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._broken or not (self._lines or self._writing), timeout_s
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines:
                    self._changed.wait()
                line = self._lines.popleft()
                self._writing = True
            try:
                write_all(self._fd, line)
                self._tell_lost()
            except OSError:
                # The reader is gone for good (EPIPE, EBADF): nobody will read what comes, nor this.
                with self._changed:
                    self._broken = True
                    self._lines.clear()
                    self._changed.notify_all()
                return
            with self._changed:
                self._bytes -= len(line)
                self._writing = False
                self._changed.notify_all()

    def _tell_lost(self) -> None:
        with self._changed:
            # Not in front of lines that were queued before the first was lost.
            lost = 0 if self._lines else self._lost_untold
            self._lost_untold -= lost
        if lost:
            write_all(self._fd, _encoded(self._lost_line(lost)))


class QueueHandler(logging.Handler):
    """Formats where the line is logged, for its arguments may change later, and queues it."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self.writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.writer.write(self.format(record))
        except Exception:
            self.writer.lost += 1  # an argument that can't be shown must not end who logs

    def flush(self) -> None:
        """Nothing: who logs does not wait. The process flushes at its end."""


def write_all(fd: int, data: bytes, timeout_s: float | None = None) -> bool:
    """Writes `data`, waiting for a reader as long as `timeout_s` allows (None: for ever); whether all of it went. OSError."""
    ends_at = None if timeout_s is None else time.monotonic() + timeout_s
    writable = select.poll()
    writable.register(fd, select.POLLOUT)
    at = 0
    while at < len(data):
        left_ms = None if ends_at is None else max(0.0, 1000 * (ends_at - time.monotonic()))
        if not writable.poll(left_ms):
            return False
        try:
            at += os.write(fd, data[at : at + _PIECE_BYTES])
        except BlockingIOError:  # somebody has made it non-blocking
            continue
    return True


def _encoded(line: str) -> bytes:
    data = line.encode("utf-8", "backslashreplace")
    if len(data) > LINE_BYTES_MAX:
        data = data[:LINE_BYTES_MAX].decode("utf-8", "ignore").encode() + b"..."
    return data + b"\n"
