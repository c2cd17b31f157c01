"""Watches an event loop from outside: how late it runs what it is given, and where it hangs when it does not."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from kvstore.common.logs import log_throttled

logger = logging.getLogger(__name__)

PERIOD_S = 0.25
# From here on it is a stall, which is logged with where the loop is.
STALL_S = 1.0
# A loop that hangs for so long does not come back: a liveness probe may restart the process.
DEAD_S = 10.0
# A watcher that comes so much too late was stopped itself (SIGSTOP, a frozen machine): that says nothing of the loop.
_FROZEN_S = 0.5
_FRAMES_MAX = 12
_SLOTS, _SLOT_S = 6, 10.0


class LoopWatchdog:
    """`start` on the loop, once; everything else may be called from any thread."""

    def __init__(
        self,
        on_lag: Callable[[float], None],
        on_stall: Callable[[], None],
        *,
        period_s: float = PERIOD_S,
        stall_s: float = STALL_S,
        dead_s: float = DEAD_S,
    ) -> None:
        """`on_lag` hears how late each probe ran, in seconds, and `on_stall` of each that ran later than `stall_s`: from the
        watching thread."""
        self._on_lag = on_lag
        self._on_stall = on_stall
        self._period_s = period_s
        self._stall_s = stall_s
        self._dead_s = dead_s
        self._answered = threading.Event()
        self._stopping = threading.Event()
        self._asked_at: float | None = None  # while a probe is out
        self._slots: list[tuple[int, float]] = []  # (slot number, longest lag in it)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watches the running loop."""
        loop, thread_id = asyncio.get_running_loop(), threading.get_ident()
        self._thread = threading.Thread(
            target=self._run, args=(loop, thread_id), name="loop-watchdog", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Idempotent."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(2 * self._period_s + 1.0)

    @property
    def stalled_s(self) -> float:
        """How long the loop has not run what it was given; about 0 while it is well."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else max(0.0, time.monotonic() - asked_at)

    @property
    def alive(self) -> bool:
        """Whether the loop is, and who watches it."""
        watching = self._thread is None or self._thread.is_alive() or self._stopping.is_set()
        return watching and self.stalled_s < self._dead_s

    @property
    def lag_max_s(self) -> float:
        """The longest lag of the last minute, that of now included."""
        oldest = int(time.monotonic() / _SLOT_S) - _SLOTS
        return max([self.stalled_s, *(lag for slot, lag in list(self._slots) if slot > oldest)])

    def _run(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        while not self._stopping.wait(self._period_s):
            self._answered.clear()
            self._asked_at = time.monotonic()
            try:
                loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:
                return  # the loop is closed
            if not self._wait_answered(loop, thread_id):
                return
            asked_at, self._asked_at = self._asked_at, None
            self._note(time.monotonic() - asked_at)

    def _wait_answered(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> bool:
        """False when there is no more to watch."""
        told = False
        wait_s = self._stall_s
        while True:
            began = time.monotonic()
            if self._answered.wait(wait_s):
                return True
            if self._stopping.is_set() or loop.is_closed():
                return False
            assert self._asked_at is not None
            late_s = time.monotonic() - began - wait_s
            if late_s > _FROZEN_S:
                self._asked_at += late_s
            elif not told:
                told = True
                self._on_stall()
                fields = {"stalled_s": round(self.stalled_s, 3), "stack": stack_of(thread_id)}
                log_throttled(logger, logging.ERROR, "event_loop_stalled", "", **fields)
            wait_s = self._period_s

    def _note(self, lag_s: float) -> None:
        self._on_lag(lag_s)
        slot = int(time.monotonic() / _SLOT_S)
        if self._slots and self._slots[-1][0] == slot:
            self._slots[-1] = slot, max(lag_s, self._slots[-1][1])
        else:
            self._slots = [*self._slots[-_SLOTS:], (slot, lag_s)]


def stack_of(thread_id: int) -> str:
    """Where a thread is, the innermost call first, in one line."""
    frame = sys._current_frames().get(thread_id)
    if frame is None:
        return "the thread has ended"
    calls = traceback.extract_stack(frame)[-_FRAMES_MAX:]
    return " < ".join(f"{call.name} ({Path(call.filename).name}:{call.lineno})" for call in reversed(calls))
