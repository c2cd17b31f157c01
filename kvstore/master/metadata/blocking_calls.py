"""Calls that may wait for a disk, away from the event loop, and without an end that has to be waited for."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


class BlockingCalls:
    """One thread that makes them one after another. It is a daemon: a call that hangs keeps no process from its end."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._name = name
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], _T]) -> _T:
        """What `work` returns or raises. Cancelled, it goes on without being waited for."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_T] = loop.create_future()

        def tell(set_answer: Callable[[Any], None], value: Any) -> None:
            if not answer.done():
                set_answer(value)

        def call() -> None:
            outcome: tuple[Callable[[Any], None], Any]
            try:
                outcome = (answer.set_result, work())
            except Exception as error:
                outcome = (answer.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(tell, *outcome)

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(call)
        return await answer

    def close(self) -> None:
        """The thread ends after what it has to do; nobody waits for it. Idempotent."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread = None

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
