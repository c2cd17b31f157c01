"""Group commit: whatever is submitted while a commit is in flight goes into the next one, in order.

Submissions are durable in the order they were made, each atomically. When a commit fails, everything queued
behind it fails too: the log in the store never has a hole that a later record covers up. A FencedError ends
the committer for good.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvstore.common.errors import FencedError, StoreError
from kvstore.master.changes import Change
from kvstore.master.metadata.store import Fence, MetadataStore, Op, OpSet, op_bytes

# Above this the control service stops reading journals; the rest of a stop-and-go margin is one batch a
# stream.
BACKLOG_BYTES_MAX = 32 << 20
RETRY_DELAY_S = 0.2  # after a failure, so that a broken disk is not hammered


@dataclass(slots=True)
class _Submission:
    ops: Sequence[Op]
    size_bytes: int
    change: Change | None
    done: asyncio.Future[None] | None


class Committer:
    """Callbacks run on the event loop: on_done(change), on_failed(change, error), on_commit(seconds,
    submissions)."""

    def __init__(
        self,
        store: MetadataStore,
        fence: Fence,
        *,
        on_done: Callable[[Change], None],
        on_failed: Callable[[Change, str], None],
        on_commit: Callable[[float, int], None],
        on_fenced: Callable[[FencedError], None],
    ) -> None:
        self._store = store
        self._fence = fence
        self._on_done = on_done
        self._on_failed = on_failed
        self._on_commit = on_commit
        self._on_fenced = on_fenced
        self._queue: deque[_Submission] = deque()
        self._backlog_bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="committer")

    @property
    def backlog_bytes(self) -> int:
        return self._backlog_bytes

    def submit(self, ops: Sequence[Op], change: Change) -> None:
        self._enqueue(_Submission(ops, sum(map(op_bytes, ops)), change, None))

    async def commit(self, ops: Sequence[Op]) -> None:
        """For writes that are no change of state by themselves. Raises StoreError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enqueue(_Submission(ops, sum(map(op_bytes, ops)), None, done))
        await done

    async def wait_for_room(self) -> None:
        """Until the backlog is below its bound."""
        await self._room.wait()

    async def stop(self) -> None:
        """Commits what is queued, then ends. Idempotent."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await self._task
            self._task = None

    def _enqueue(self, submission: _Submission) -> None:
        self._queue.append(submission)
        self._backlog_bytes += submission.size_bytes
        if self._backlog_bytes > BACKLOG_BYTES_MAX:
            self._room.clear()
        self._wake.set()

    async def _run(self) -> None:
        while True:
            while not self._queue:
                if self._stopping:
                    return
                self._wake.clear()
                await self._wake.wait()
            group, ops = self._next_group()
            started = time.perf_counter()
            try:
                await self._store.commit(ops, self._fence)
            except StoreError as error:
                self._fail(group, error)
                if isinstance(error, FencedError):
                    self._on_fenced(error)
                elif not self._stopping:
                    await asyncio.sleep(RETRY_DELAY_S)
                continue
            self._on_commit(time.perf_counter() - started, len(group))
            for submission in group:
                self._release(submission)
                if submission.done is not None and not submission.done.done():
                    submission.done.set_result(None)
                if submission.change is not None:
                    self._on_done(submission.change)

    def _next_group(self) -> tuple[list[_Submission], list[Op]]:
        together = OpSet()
        group: list[_Submission] = []
        while self._queue and (not group or together.fits(self._queue[0].ops)):
            submission = self._queue.popleft()
            group.append(submission)
            if not together.fits(submission.ops):
                return group, list(submission.ops)  # alone, so that the store says what is wrong with it
            together.add(submission.ops)
        return group, together.ops

    def _fail(self, group: list[_Submission], error: StoreError) -> None:
        failed = [*group, *self._queue]
        self._queue.clear()
        for submission in failed:
            self._release(submission)
            if submission.done is not None and not submission.done.done():
                submission.done.set_exception(error)
            if submission.change is not None:
                self._on_failed(submission.change, str(error))

    def _release(self, submission: _Submission) -> None:
        self._backlog_bytes -= submission.size_bytes
        assert self._backlog_bytes >= 0
        if self._backlog_bytes <= BACKLOG_BYTES_MAX:
            self._room.set()
