"""An event loop whose clock jumps to the next thing that is due: no waiting, no threads, no sockets.

Everything that could differ from run to run is taken out: callbacks run in the order in which they were scheduled, tasks and futures
hash by their number (asyncio keeps them in sets), and what product code hands to a thread is done at once and answered a moment later.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

# How long a piece of work takes that is handed to a thread, in virtual time: others run meanwhile.
THREAD_S = 0.002
# Callbacks without the clock moving: more is a loop that spins.
SPIN_MAX = 200_000


class Stuck(Exception):
    """Nothing is due any more, or the clock stands still: whoever waits would wait for ever."""


class NumberedTask(asyncio.Task):  # type: ignore[type-arg]
    def __init__(self, *args: Any, number: int, **kwargs: Any) -> None:
        self._number = number
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class NumberedFuture(asyncio.Future):  # type: ignore[type-arg]
    def __init__(self, *, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """`time()` begins at 1,000 s, so that no 0 passes for "never" by accident. `on_task` sees each task that is made."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0
        self._spins = 0
        self._numbers = itertools.count(1)
        self._clock_resolution = 1e-9
        self._selector = self
        self.on_task: Callable[[NumberedTask], None] = lambda task: None
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._now

    def create_future(self) -> NumberedFuture:
        return NumberedFuture(number=next(self._numbers), loop=self)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], context: Context | None = None
    ) -> NumberedTask:
        number = next(self._numbers)
        if context is None:
            task = NumberedTask(work, loop=loop, number=number)
        else:
            task = context.run(lambda: NumberedTask(work, loop=loop, number=number))
        self.on_task(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        future = self.create_future()
        try:
            result = func(*args)
        except Exception as error:
            self.call_later(THREAD_S, _answer, future, None, error)
        else:
            self.call_later(THREAD_S, _answer, future, result, None)
        return future

    # ---- what BaseEventLoop asks of its selector and of its kind of loop -------------------------------------

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing is due any more")
        if timeout > 0:
            self._now = self._scheduled[0]._when  # type: ignore[attr-defined]
            self._spins = 0
        else:
            self._spins += 1
            if self._spins > SPIN_MAX:
                raise Stuck("callbacks run for ever while the clock stands still")
        return []

    def _process_events(self, events: list[Any]) -> None:
        return

    def _write_to_self(self) -> None:
        return


def _answer(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
