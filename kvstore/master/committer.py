"""Group commit: whatever is submitted while a commit is in flight goes into the next one, in order.

A group is the whole queue, in as many atomic commits as the bounds of one ask for, which the store makes durable together if it can:
one write, however many segments wait. Submissions are durable in the order they were made, each atomically. A commit that fails is made again, the same operations in the
same order, until the store takes it: they say the same however often they are carried out. So the log in the store never has a hole
that a later record covers up, and a store that is away for a while costs time and nothing else. Whoever can't wait is told
(`on_stalled`). What the store will never take (a broken bound) fails for good with everything behind it. So does what comes
once another master writes: each FencedError is told (`on_fenced`) to who owns the committer and is to stop it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvstore.common.backoff import Backoff
from kvstore.common.core_tasks import CoreTasks
from kvstore.common.errors import FencedError, StoreError
from kvstore.master.metadata.store import Fence, MetadataStore, Op, OpSet, OutOfBoundsError, op_bytes
from kvstore.master.state.changes import Change

# Above this the control service stops reading journals; the rest of a stop-and-go margin is one batch a
# stream.
BACKLOG_BYTES_MAX = 32 << 20
# Between attempts, so that a broken disk is not hammered.
RETRY_DELAY_S_MIN = 0.05
RETRY_DELAY_S_MAX = 1.0
# What is durable is told for so long before requests get their turn: each journal of a group takes milliseconds to apply.
TURN_S = 0.005
# Of commits that go to the store together: what one write takes without keeping those behind it waiting.
GROUP_BYTES_MAX = 2 << 20
# A commit that is under way when the master stops is waited for so long: a disk that hangs keeps nobody.
STOP_TIMEOUT_S = 0.2


@dataclass(slots=True)
class _Submission:
    ops: Sequence[Op]
    size_bytes: int
    in_bounds: bool  # of a commit
    change: Change | None
    done: asyncio.Future[None] | None


class Committer:
    """Callbacks run on the event loop:

    on_done(change), on_failed(change, error): in the order of submission
    on_commit(seconds, submissions): a commit was made
    on_stalled(error, stalled_s): one was not, and is tried again; `stalled_s` since the first of its attempts failed
    on_fenced(error): another master writes
    """

    def __init__(
        self,
        store: MetadataStore,
        fence: Fence,
        *,
        on_done: Callable[[Change], None],
        on_failed: Callable[[Change, str], None],
        on_commit: Callable[[float, int], None],
        on_stalled: Callable[[str, float], None],
        on_fenced: Callable[[FencedError], None],
    ) -> None:
        self._store = store
        self._fence = fence
        self._on_done = on_done
        self._on_failed = on_failed
        self._on_commit = on_commit
        self._on_stalled = on_stalled
        self._on_fenced = on_fenced
        self._queue: deque[_Submission] = deque()
        self._backlog_bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()

    @property
    def backlog_bytes(self) -> int:
        return self._backlog_bytes

    def submit(self, ops: Sequence[Op], change: Change) -> None:
        self._enqueue(ops, change, None)

    async def commit(self, ops: Sequence[Op]) -> None:
        """For writes that are no change of state by themselves. Raises StoreError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enqueue(ops, None, done)
        await done

    def start(self, tasks: CoreTasks) -> None:
        self._ended.clear()
        tasks.start_job(self._run(), "committer")

    async def wait_for_room(self) -> None:
        """Until the backlog is below its bound."""
        await self._room.wait()

    async def stop(self) -> None:
        """Returns when what is queued is committed, or has failed, or when a commit has taken too long: whether it becomes durable is
        not known then. Idempotent."""
        self._stopping.set()
        self._wake.set()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), STOP_TIMEOUT_S)

    def _enqueue(self, ops: Sequence[Op], change: Change | None, done: asyncio.Future[None] | None) -> None:
        alone = OpSet()
        try:
            alone.add(ops)
        except OutOfBoundsError:
            in_bounds, size_bytes = False, sum(map(op_bytes, ops))
        else:
            in_bounds, size_bytes = True, alone.size_bytes
        self._queue.append(_Submission(ops, size_bytes, in_bounds, change, done))
        self._backlog_bytes += size_bytes
        if self._backlog_bytes > BACKLOG_BYTES_MAX:
            self._room.clear()
        self._wake.set()

    async def _run(self) -> None:
        try:
            while True:
                while not self._queue:
                    if self._stopping.is_set():
                        return
                    self._wake.clear()
                    await self._wake.wait()
                group, commits = self._next_group()
                await self._commit(group, commits)
        finally:
            self._ended.set()

    async def _commit(self, group: list[_Submission], commits: list[list[Op]]) -> None:
        backoff = Backoff(RETRY_DELAY_S_MIN, RETRY_DELAY_S_MAX)
        first_failure = None
        while True:
            started = time.perf_counter()
            try:
                await self._store.commit_together(commits, self._fence)
                break
            except (FencedError, OutOfBoundsError) as error:
                self._fail(group, error)
                if isinstance(error, FencedError):
                    self._on_fenced(error)
                return
            except StoreError as error:
                if self._stopping.is_set():
                    self._fail(group, error)
                    return
                now = time.perf_counter()
                first_failure = first_failure or now
                self._on_stalled(str(error), now - first_failure)
            except asyncio.CancelledError:
                self._fail(group, StoreError("the master has stopped"))
                raise
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), backoff.next_delay_s())
        self._on_commit(time.perf_counter() - started, len(group))
        turn_began = time.perf_counter()
        for submission in group:
            self._release(submission)
            if submission.done is not None and not submission.done.done():
                submission.done.set_result(None)
            if submission.change is not None:
                self._on_done(submission.change)
            if time.perf_counter() - turn_began > TURN_S:
                await asyncio.sleep(0)
                turn_began = time.perf_counter()

    def _next_group(self) -> tuple[list[_Submission], list[list[Op]]]:
        """What goes to the store together: (submissions, the commits that they make up)."""
        group: list[_Submission] = []
        commits: list[list[Op]] = []
        size_bytes = 0
        while (
            self._queue and len(commits) < self._store.COMMITS_TOGETHER_MAX and size_bytes < GROUP_BYTES_MAX
        ):
            if not self._queue[0].in_bounds:
                if not group:  # alone, so that the store says what is wrong with it
                    group.append(self._queue.popleft())
                    commits.append(list(group[0].ops))
                break
            together = OpSet()
            while self._queue and self._queue[0].in_bounds and together.fits(self._queue[0].ops):
                group.append(self._queue.popleft())
                together.add(group[-1].ops)
            commits.append(together.ops)
            size_bytes += together.size_bytes
        return group, commits

    def _fail(self, group: list[_Submission], error: StoreError) -> None:
        """For good, and with everything queued behind it."""
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
