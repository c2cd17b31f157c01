"""The tasks that a master can't do without. One that ends before it is told to ends the process.

A dead committer would leave a master that looks well and makes nothing durable. So each such task is started here, and what
ends it is logged in one line and handed to `on_ended`, which stops the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from kvstore.common.errors import CoreTaskEnded, KvstoreError, NewerFormatError

logger = logging.getLogger(__name__)


class CoreTasks:
    """Tasks of one owner: all of them end with `stop()`. Event loop only."""

    def __init__(self, on_ended: Callable[[KvstoreError], None]) -> None:
        """`on_ended` hears, once for each, of tasks that ended by themselves."""
        self._on_ended = on_ended
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Runs `work`, which is to go on until it is cancelled by `stop()`: that it ends is a failure."""
        self._start(work, name, endless=True)

    def start_job(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Runs `work`, which may end; that it raises is a failure."""
        self._start(work, name, endless=False)

    async def stop(self) -> None:
        """Cancels what runs and waits for its end. Idempotent; nothing is started any more."""
        self._stopping = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None], name: str, *, endless: bool) -> None:
        if self._stopping:
            work.close()
            return
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._ended(ended, endless))

    def _ended(self, task: asyncio.Task[None], endless: bool) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None and (not endless or self._stopping):
            return
        if isinstance(error, NewerFormatError):
            self._on_ended(error)  # no bug: its text says all
            return
        why = "it was cancelled" if task.cancelled() else repr(error) if error is not None else "it returned"
        fields = {"task": task.get_name(), "why": why}
        logger.critical("core_task_ended", exc_info=error, extra={"fields": fields})
        self._on_ended(CoreTaskEnded(f"core task {task.get_name()} ended: {why}"))
