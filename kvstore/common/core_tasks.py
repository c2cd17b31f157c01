"""The tasks that a server can't do without: one that ends before it is told to is started again, or ends the process.

A dead committer would leave a master that looks well and makes nothing durable. So each such task is started here. What ends one
that holds state is logged in one line and handed to `on_ended`, which stops the process; one that only watches is started again,
with a back-off, logged and counted.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from kvstore.common.backoff import Backoff
from kvstore.common.errors import CoreTaskEnded, KvstoreError, NewerFormatError
from kvstore.common.logs import log_throttled

logger = logging.getLogger(__name__)

Work = Coroutine[Any, Any, None]

RESTART_DELAY_S_MIN = 0.1
RESTART_DELAY_S_MAX = 10.0
# One that has gone on for so long was well: its next end begins a new series of back-offs.
WELL_AFTER_S = 60.0

_all: weakref.WeakSet[CoreTasks] = weakref.WeakSet()
_restarts: Counter[str] = Counter()


class CoreTasks:
    """Tasks of one owner: all of them end with `stop()`. Event loop only."""

    def __init__(self, on_ended: Callable[[KvstoreError], None]) -> None:
        """`on_ended` hears, once for each, of tasks that ended by themselves and are not started again."""
        self._on_ended = on_ended
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        _all.add(self)

    def start(self, work: Work, name: str) -> None:
        """Runs `work`, which is to go on until it is cancelled by `stop()`: that it ends is a failure."""
        self._start(work, name, endless=True)

    def start_job(self, work: Work, name: str) -> None:
        """Runs `work`, which may end; that it raises is a failure."""
        self._start(work, name, endless=False)

    def keep(self, make: Callable[[], Work], name: str) -> None:
        """Runs what `make` makes, and again each time that it ends: for work that can begin anew at any moment."""
        self._keep(make, name, Backoff(RESTART_DELAY_S_MIN, RESTART_DELAY_S_MAX))

    async def stop(self) -> None:
        """Cancels what runs and waits for its end. Idempotent; nothing is started any more."""
        tasks = list(self._tasks)
        self.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def cancel(self) -> None:
        """The same, without waiting."""
        self._stopping = True
        for task in list(self._tasks):
            task.cancel()

    def _start(self, work: Work, name: str, *, endless: bool) -> None:
        if self._stopping:
            work.close()
            return
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._ended(ended, endless))

    def _ended(self, task: asyncio.Task[None], endless: bool) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None and (self._stopping or not (endless or task.cancelled())):
            return
        if isinstance(error, NewerFormatError):
            self._on_ended(error)  # no bug: its text says all
            return
        why = _why(task)
        fields = {"task": task.get_name(), "why": why}
        logger.critical("core_task_ended", exc_info=error, extra={"fields": fields})
        self._on_ended(CoreTaskEnded(f"core task {task.get_name()} ended: {why}"))

    def _keep(self, make: Callable[[], Work], name: str, backoff: Backoff) -> None:
        if self._stopping:
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        task = asyncio.create_task(make(), name=name)
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            error = (
                None if task.cancelled() else task.exception()
            )  # looked at, so that asyncio does not complain
            if self._stopping:
                return
            if loop.time() - began >= WELL_AFTER_S:
                backoff.reset()
            fields: dict[str, Any] = {"task": name, "why": _why(task), "exc_info": error}
            log_throttled(logger, logging.ERROR, "core_task_restarted", name, **fields)
            _restarts[name] += 1
            loop.call_later(backoff.next_delay_s(), self._keep, make, name, backoff)

        task.add_done_callback(ended)


def running_core_tasks() -> list[asyncio.Task[None]]:
    """Those of all owners in this process."""
    return [task for owner in list(_all) for task in owner._tasks if not task.done()]


def core_task_restarts() -> dict[str, int]:
    """How often each has been started again in this process."""
    return dict(_restarts)


def _why(task: asyncio.Task[None]) -> str:
    if task.cancelled():
        return "it was cancelled"
    error = task.exception()
    return repr(error) if error is not None else "it returned"
