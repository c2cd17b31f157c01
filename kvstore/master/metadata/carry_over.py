"""Brings commits that are durable in the log over to RocksDB, in the background, and says which the log needs no more.

They go in order, in large batches, and again from the last checkpoint on after a crash: the end state is the same however often they
are carried over. A process that ends is started again. One that hangs holds up checkpoints and nothing else, until the log is full.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from kvstore.common.backoff import Backoff
from kvstore.common.core_tasks import CoreTasks
from kvstore.common.errors import StoreError
from kvstore.common.logs import log_event, log_throttled
from kvstore.master.metadata.rocksdb_client import ProcessEndedError, RocksdbProcess
from kvstore.master.metadata.rocksdb_messages import SEQUENCE, Request
from kvstore.master.metadata.store_directory import PROCESS_ENDED, remedy

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# Carried over when so much waits, or so long after the first of it.
CARRY_BYTES = 256 << 10
CARRY_DELAY_S = 1.0
# Of one message. A commit is the least that can be sent.
APPLY_BYTES_MAX = 1 << 20
# A checkpoint makes the log's files free: early enough that none is wanted before. Also in quiet times, so that a start has little
# to carry over.
CHECKPOINT_BYTES = 4 << 20
CHECKPOINT_PERIOD_S = 60.0
# RocksDB is opened anew after it failed, or while it is read-only.
RESTART_DELAY_S_MIN = 0.1
RESTART_DELAY_S_MAX = 5.0
# The next process waits so long for the end of the one before, which is killed.
GONE_TIMEOUT_S = 1.0
# A read waits so long for a process that starts or hangs.
READ_TIMEOUT_S = 30.0
# And tries so often when the process ends under it.
READ_ATTEMPTS_MAX = 3


class CarryOver:
    """start(), add() what the log still has, begin(); then add() in the order of sequences. Event loop only."""

    def __init__(self, path: Path, on_checkpoint: Callable[[int], None]) -> None:
        """`on_checkpoint` hears up to which sequence everything is durable in RocksDB."""
        self._path = path
        self._on_checkpoint = on_checkpoint
        self._loop = asyncio.get_running_loop()
        self._process: RocksdbProcess | None = None
        self._dropped: RocksdbProcess | None = None  # the one before
        self._checkpointed: int | None = None  # up to there RocksDB had everything; None: it was not open yet
        self._tasks = CoreTasks(lambda failure: None)  # none that is not started again
        # (sequence, payload) of what no checkpoint has yet, and of it what this process has not been sent.
        self._unchecked: deque[tuple[int, bytes]] = deque()
        self._unsent: deque[tuple[int, bytes]] = deque()
        self._unchecked_bytes = 0
        self._unsent_bytes = 0
        self._unchecked_since = 0.0
        self._unsent_since = 0.0
        self._hurried = False
        self._sending = asyncio.Lock()
        self._wake = asyncio.Event()
        self._ready = asyncio.Event()
        self.trouble = ""  # why RocksDB takes nothing, while it does not

    async def start(self) -> int:
        """Opens RocksDB; up to which sequence it has everything. Raises CanNotOpenError, or ProcessEndedError."""
        return (await self._open()).carried

    def begin(self) -> None:
        """Carries over from here on."""
        self._tasks.keep(self._run, "metadata-carry-over")

    def add(self, sequence: int, payload: bytes) -> None:
        if not self._unchecked:
            self._unchecked_since = self._loop.time()
        if not self._unsent:
            self._unsent_since = self._loop.time()
            self._wake.set()
        self._unchecked.append((sequence, payload))
        self._unsent.append((sequence, payload))
        self._unchecked_bytes += len(payload)
        self._unsent_bytes += len(payload)
        if self._unsent_bytes >= CARRY_BYTES:
            self._wake.set()

    def hurry(self) -> None:
        """A checkpoint is wanted now: the log has lost a file to a failure."""
        self._hurried = True
        self._wake.set()

    async def get(self, key: bytes) -> bytes | None:
        async def ask() -> bytes:
            return await (await self._caught_up()).ask(Request.GET, key)

        found = await self._reading(ask)
        return found[1:] if found[0] else None

    async def scan(self, prefix: bytes) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        """A process that ends meanwhile costs time: the next one goes on behind what has been read."""
        last = b""
        for attempt in range(1, READ_ATTEMPTS_MAX + 1):
            pages = (await self._reading(self._caught_up)).scan(prefix)
            try:
                while (page := await self._within(anext(pages, None))) is not None:
                    fresh = [pair for pair in page if pair[0] > last]
                    last = page[-1][0]
                    if fresh:
                        yield fresh
                return
            except ProcessEndedError:
                if attempt == READ_ATTEMPTS_MAX:
                    raise
            finally:
                await pages.aclose()

    async def checkpoint(self) -> None:
        """Everything added before is durable in RocksDB on return. Raises StoreError."""
        await self._checkpoint(await self._within(self._caught_up()))

    def stop(self) -> None:
        """At once. What no checkpoint has is in the log. Idempotent."""
        self._tasks.cancel()
        self._drop_process()

    async def gone(self, timeout_s: float) -> None:
        """After stop(): until the process is no more, and the directory is free; not for longer than that."""
        if self._dropped is not None:
            await self._dropped.gone(timeout_s)

    # ---- carrying over ---------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._carry_over()
        finally:
            self._drop_process()  # how far it got, the next one says

    async def _carry_over(self) -> None:
        backoff = Backoff(RESTART_DELAY_S_MIN, RESTART_DELAY_S_MAX)
        while True:
            try:
                process = self._process or await self._open()
                if not process.read_only:
                    await self._carry(process, backoff)
                # Only a process that is started anew can find out whether there is space again.
                await asyncio.wait([process.ended], timeout=backoff.next_delay_s())
                self._drop_process()
            except StoreError as error:
                self._drop_process()
                self.trouble = why = str(error)
                log_throttled(
                    logger, logging.ERROR, "metadata_process_failed", "", error=why, remedy=remedy(why)
                )
                await asyncio.sleep(backoff.next_delay_s())

    async def _open(self) -> RocksdbProcess:
        if self._dropped is not None:
            await self._dropped.gone(GONE_TIMEOUT_S)  # it has RocksDB's lock for as long
        process = self._process = RocksdbProcess(self._path, make=self._checkpointed is None)
        try:
            await process.start()
            self._check_kept(process)
        except BaseException:
            self._drop_process()
            raise
        self._unsent = deque(item for item in self._unchecked if item[0] > process.carried)
        self._unsent_bytes = sum(len(payload) for _, payload in self._unsent)
        if process.read_only:
            log_throttled(
                logger,
                logging.ERROR,
                "metadata_store_read_only",
                "",
                path=str(self._path),
                error=process.read_only,
                remedy=remedy(process.read_only),
            )
        elif self.trouble:
            log_event(logger, logging.WARNING, "metadata_store_recovered", path=str(self._path))
        self.trouble = process.read_only
        self._ready.set()
        return process

    def _check_kept(self, process: RocksdbProcess) -> None:
        """Raises StoreError where other files have taken the place of those that were there: what the log was let go of for is gone."""
        if self._checkpointed is not None and process.carried < self._checkpointed:
            raise StoreError(
                f"{self._path} was replaced while it was in use: it has the commits up to {process.carried}, not to "
                f"{self._checkpointed}: {os.strerror(errno.ENOENT)}"
            )
        self._checkpointed = process.carried

    def _drop_process(self) -> None:
        self._ready.clear()
        if self._process is not None:
            self._process.kill()
            self._dropped, self._process = self._process, None

    async def _carry(self, process: RocksdbProcess, backoff: Backoff) -> None:
        """Until the process fails: raises StoreError."""
        while True:
            due_s = self._due_s()
            if due_s is None or due_s > 0:
                await self._sleep(process, due_s)
                continue
            await self._send(process)
            waited_s = self._loop.time() - self._unchecked_since
            enough = self._unchecked_bytes >= CHECKPOINT_BYTES or waited_s >= CHECKPOINT_PERIOD_S
            if enough or self._hurried:
                await self._checkpoint(process)
                backoff.reset()

    def _due_s(self) -> float | None:
        """In how many seconds there is something to do; None: not before something is added."""
        if self._unsent_bytes >= CARRY_BYTES or (self._hurried and self._unchecked):
            return 0.0
        if self._unsent:
            return max(0.0, self._unsent_since + CARRY_DELAY_S - self._loop.time())
        if self._unchecked:
            return max(0.0, self._unchecked_since + CHECKPOINT_PERIOD_S - self._loop.time())
        return None

    async def _sleep(self, process: RocksdbProcess, timeout_s: float | None) -> None:
        """Until then, or until something is added. Raises ProcessEndedError."""
        self._wake.clear()
        woken = asyncio.ensure_future(self._wake.wait())
        either: set[asyncio.Future[Any]] = {woken, process.ended}
        try:
            await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
        if process.ended.done():
            raise ProcessEndedError(f"{PROCESS_ENDED}: {process.ended.result()}")

    async def _send(self, process: RocksdbProcess) -> None:
        async with self._sending:
            while self._unsent and self._process is process:
                batch: list[bytes] = []
                size = 0
                sequence = 0
                while self._unsent and (not batch or size + len(self._unsent[0][1]) <= APPLY_BYTES_MAX):
                    sequence, payload = self._unsent.popleft()
                    batch.append(payload)
                    size += len(payload)
                self._unsent_bytes -= size
                await process.ask(Request.APPLY, SEQUENCE.pack(sequence) + b"".join(batch))

    async def _checkpoint(self, process: RocksdbProcess) -> None:
        (sequence,) = SEQUENCE.unpack(await process.ask(Request.CHECKPOINT))
        while self._unchecked and self._unchecked[0][0] <= sequence:
            self._unchecked_bytes -= len(self._unchecked.popleft()[1])
        self._hurried = False
        self._checkpointed = sequence
        self._unchecked_since = self._loop.time()
        self._on_checkpoint(sequence)

    # ---- reading ---------------------------------------------------------------------------------------------

    async def _caught_up(self) -> RocksdbProcess:
        """A process that has everything that has been added."""
        await self._ready.wait()
        process = self._process
        assert process is not None
        await self._send(process)
        return process

    async def _reading(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Once more where the process ends meanwhile."""
        for _ in range(READ_ATTEMPTS_MAX - 1):
            try:
                return await self._within(work())
            except ProcessEndedError:
                if self._process is not None and self._process.ended.done():
                    self._ready.clear()  # until there is another one
        return await self._within(work())

    @staticmethod
    async def _within(work: Awaitable[_T]) -> _T:
        try:
            return await asyncio.wait_for(work, READ_TIMEOUT_S)
        except asyncio.TimeoutError:
            raise StoreError(f"the process of RocksDB has not answered within {READ_TIMEOUT_S:g} s") from None
