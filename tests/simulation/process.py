"""A process of the simulated cluster: what it runs dies with it, and never notices."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

from simulation.virtual_time import NumberedTask, VirtualLoop

_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def adopt(task: NumberedTask) -> None:
    """VirtualLoop.on_task: a task belongs to the process that made it."""
    process = _process.get()
    if process is None:
        return
    if not process.alive:
        task.cancel()  # a timer of one that was killed
        return
    process.tasks[task] = None
    task.add_done_callback(process.ended)


def current_process() -> Process:
    """The one that asks."""
    process = _process.get()
    assert process is not None
    return process


def monotonic_s(loop: VirtualLoop) -> float:
    """The clock of the process that asks."""
    process = _process.get()
    return loop.time() + (process.clock_offset_s if process is not None else 0.0)


class Process:
    """One life of a master, segment or client. `host` is where it runs: what a partition cuts off."""

    def __init__(self, loop: VirtualLoop, host: str) -> None:
        self.loop = loop
        self.host = host
        self.alive = True
        self.clock_offset_s = 0.0  # its clock against the loop's
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Runs `work` in this process. What it raises is for its caller to look at."""
        return self.context.run(lambda: self.loop.create_task(work, name=name))

    def ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)

    def kill(self) -> None:
        """kill -9: nothing of it is seen or heard from now on. Network and store must already refuse it."""
        self.alive = False
        tasks, self.tasks = list(self.tasks), {}
        for task in tasks:
            task.cancel()
