"""Starts child processes, waits for what they announce, starts them again when they crash, stops them all."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvstore.common.backoff import Backoff

logger = logging.getLogger(__name__)

CHILD_COMMAND = (sys.executable, "-m", "kvstore.cli.entry")
STOP_TIMEOUT_S = 6.0
# A child that has run this long was well: its next crash begins a new series of back-offs.
HEALTHY_AFTER_S = 30.0
_LINE_BYTES_MAX = 65_536

Announcement = dict[str, Any]


class ChildFailed(Exception):
    """A child ended before it was ready; it has said why on stderr."""


@dataclass(frozen=True)
class ChildSpec:
    """A `kvstore` sub-command to keep running.

    `arguments` is asked at each start, so that a restarted child can be told the ports that its predecessor
    had.
    `ready_event` is the announcement that makes it ready; `on_event` sees every announcement.
    """

    name: str
    arguments: Callable[[], list[str]]
    ready_event: str
    on_event: Callable[[Announcement], None]


class Child:
    """One supervised process. `start` returns when it is ready; from then on it is restarted until `stop`."""

    def __init__(
        self, spec: ChildSpec, report: Callable[[str], None], backoff: Backoff | None = None
    ) -> None:
        self.spec = spec
        self._report = report
        self._backoff = backoff or Backoff(0.2, 5.0)
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._stopping = False
        self._ready = asyncio.Event()
        self.restarts = 0

    @property
    def pid(self) -> int:
        """The process id of the running child, 0 while there is none."""
        return self._process.pid if self._process is not None and self._process.returncode is None else 0

    async def start(self, timeout_s: float) -> None:
        """ChildFailed when the process ends, or is not ready in time."""
        ready = asyncio.create_task(self._ready.wait())
        process = await self._spawn()
        listening = asyncio.create_task(self._listen(process))
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({ready, ended}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not self._ready.is_set():
                if process.returncode is not None:
                    raise ChildFailed(f"{self.spec.name} {_how_it_ended(process.returncode)}")
                raise ChildFailed(f"{self.spec.name} was not ready within {timeout_s:g} s")
        except BaseException:
            await _end(process)
            listening.cancel()
            raise
        finally:
            ready.cancel()
            ended.cancel()
        self._keeping = asyncio.create_task(self._keep(process, listening), name=f"keep-{self.spec.name}")

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL after a grace. Idempotent."""
        self._stopping = True
        if self._process is not None:
            await _end(self._process)
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    async def _spawn(self) -> asyncio.subprocess.Process:
        self._process = await asyncio.create_subprocess_exec(
            *CHILD_COMMAND,
            *self.spec.arguments(),
            "--json",
            "--parent-pid",
            str(os.getpid()),
            # Children are the installed kvstore, also when started where a folder of that name lies.
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
        )
        return self._process

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            try:
                announcement = json.loads(line)
            except ValueError:
                continue  # something a library printed
            if not isinstance(announcement, dict):
                continue
            self.spec.on_event(announcement)
            if announcement.get("event") == self.spec.ready_event:
                self._ready.set()

    async def _keep(self, process: asyncio.subprocess.Process, listening: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                started = loop.time()
                code = await process.wait()
                await listening
                if self._stopping:
                    return
                if loop.time() - started > HEALTHY_AFTER_S:
                    self._backoff.reset()
                delay_s = self._backoff.next_delay_s()
                await asyncio.sleep(delay_s)
                # Ctrl-C in a terminal reaches the children too: one that ended by it is no failure.
                if self._stopping:
                    return
                self._report(f"{self.spec.name} {_how_it_ended(code)}; starting it again")
                self.restarts += 1
                process = await self._spawn()
                listening = asyncio.create_task(self._listen(process))
        finally:
            listening.cancel()


class Supervisor:
    """Children in the order they were added: started one after the other, stopped in reverse."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._children: list[Child] = []

    @property
    def children(self) -> list[Child]:
        return list(self._children)

    async def start_child(self, spec: ChildSpec, timeout_s: float) -> Child:
        """Starts it and waits until it is ready. ChildFailed otherwise."""
        child = Child(spec, self._report)
        self._children.append(child)
        await child.start(timeout_s)
        return child

    async def stop(self) -> None:
        """Stops every child, the last started first: a segment says goodbye to a master that still
        listens.
        """
        for child in reversed(self._children):
            await child.stop()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    _signal(process, signal.SIGTERM)
    # A stopped child (SIGSTOP) takes no SIGTERM until it goes on.
    _signal(process, signal.SIGCONT)
    try:
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    except asyncio.TimeoutError:
        _signal(process, signal.SIGKILL)
        await process.wait()


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except ProcessLookupError:
        return


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"
