"""Moves the pages of draining segments to others, until each has nothing that no other segment holds. The segment keeps its copies, and
serves them, until it leaves.

Nothing of this has to be durable but that the segment is draining: what is to be done is what the directory says no other segment
has. Event loop only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from kvstore.common.logs import log_event, log_throttled
from kvstore.master.object_copies import ORDER_BYTES_MAX, ObjectCopies
from kvstore.master.segment_questions import SegmentQuestions, TooManyQuestions
from kvstore.master.state.data_paths import DataPaths
from kvstore.master.state.directory_state import DirectoryState
from kvstore.master.state.drain_plan import DrainPhase, DrainProgress, DrainWalk, MoveOrder, Target
from kvstore.master.state.segment_table import Segment
from kvstore.v1 import control_pb2 as pb
from kvstore_client.protocol import FETCH_ENTRIES_MAX, FINGERPRINT_BYTES, SegmentState, Status, WireError
from kvstore_client.protocol.journal import JournalOp, decode_groups

logger = logging.getLogger(__name__)

LOOK_S = 0.25
# Puts that were placed before the drain began may come so much later: a walk that begins earlier is not the last one.
SETTLE_S = 2.0
# How soon it is tried again: whether pages came to a drained segment, whether there is room now, whether a segment answers.
AGAIN_S = 2.0
PAGE_ENTRIES = 16_384
PAGE_TIMEOUT_S = 30.0
LOOKED_UP_AT_ONCE = 512
ORDERS_MAX = 8
"""Of one drain, at a time."""


class _Interrupted(Exception):
    """The walk can't go on; the text says why."""


class Drains:
    def __init__(
        self, state: DirectoryState, questions: SegmentQuestions, copies: ObjectCopies, data_paths: DataPaths
    ) -> None:
        self._state = state
        self._questions = questions
        self._copies = copies
        self._data_paths = data_paths
        self._running: dict[
            bytes, tuple[int, asyncio.Task[None]]
        ] = {}  # by segment: its log, what empties it
        self._progress: dict[bytes, DrainProgress] = {}

    def progress(self, segment_id: bytes) -> DrainProgress | None:
        """None: it is not draining."""
        return self._progress.get(segment_id)

    async def run(self) -> None:
        """For ever: empties whatever is draining."""
        try:
            while True:
                draining = {s.segment_id: s for s in self._state.segments if s.record.draining}
                for segment_id, (log, task) in list(self._running.items()):
                    current = draining.get(segment_id)
                    if current is None or current.log != log or task.done():
                        task.cancel()
                        del self._running[segment_id]
                        self._progress.pop(segment_id, None)
                        if task.done() and not task.cancelled():
                            task.result()
                for segment_id, segment in draining.items():
                    if segment_id not in self._running:
                        self._progress[segment_id] = DrainProgress()
                        task = asyncio.create_task(self._empty(segment), name="drain")
                        self._running[segment_id] = segment.log, task
                await asyncio.sleep(LOOK_S)
        finally:
            for _, task in self._running.values():
                task.cancel()
            await asyncio.gather(*(task for _, task in self._running.values()), return_exceptions=True)
            self._running.clear()
            self._progress.clear()

    async def _empty(self, segment: Segment) -> None:
        """One drain, until it is cancelled."""
        progress = self._progress[segment.segment_id]
        began = time.monotonic()
        may_evict = True
        told = DrainPhase.WAITING
        while True:
            settled = time.monotonic() >= began + SETTLE_S
            try:
                walked = await self._walk(segment, progress, may_evict)
            except _Interrupted as interruption:
                progress.trouble = str(interruption)
                await asyncio.sleep(AGAIN_S)
                continue
            # Once: pages that make room for each other would go round for ever.
            may_evict = may_evict and walked is None
            if walked is None:
                progress.phase = DrainPhase.NO_TARGET if progress.remaining_objects else DrainPhase.DRAINED
            elif walked.moved_objects or not settled:
                await asyncio.sleep(LOOK_S)
                continue
            elif not progress.remaining_objects:
                progress.phase = DrainPhase.DRAINED
            elif walked.no_room:
                progress.phase = DrainPhase.NO_ROOM
            if progress.phase is not told and progress.phase is not DrainPhase.MOVING:
                _say(segment, progress)
            told = progress.phase
            await asyncio.sleep(AGAIN_S)

    # ---- one walk ------------------------------------------------------------------------------------------

    async def _walk(self, segment: Segment, progress: DrainProgress, may_evict: bool) -> _Mover | None:
        """What has been moved; None: there is nowhere to go. Raises _Interrupted."""
        if not self._copies.can_copy(segment.index):
            progress.phase = DrainPhase.WAITING
            raise _Interrupted("the segment is not attached, or is of a release that hands nothing to others")
        objects, size_bytes = self._state.index.segment_usage(segment.index)
        targets = self._targets(segment)
        if not targets:
            progress.remaining_objects, progress.remaining_bytes = objects, size_bytes
            return None
        if progress.phase not in (DrainPhase.DRAINED, DrainPhase.NO_ROOM):
            progress.phase = DrainPhase.MOVING
            progress.remaining_objects, progress.remaining_bytes = objects, size_bytes
        walk = DrainWalk(
            size_bytes,
            segment.used_bytes,
            targets,
            may_evict=may_evict,
            order_objects_max=FETCH_ENTRIES_MAX,
            order_bytes_max=ORDER_BYTES_MAX,
        )
        mover = _Mover(self._copies, walk, segment.index, progress)
        seen = left_objects = left_bytes = 0
        try:
            async for ns, fingerprint, length in self._hottest(segment):
                seen += 1
                if seen % LOOKED_UP_AT_ONCE == 0:
                    await asyncio.sleep(0)
                    await mover.order(walk.take())
                if self._held_elsewhere(fingerprint, segment):
                    walk.held_elsewhere(length)
                    mover.safe(1, length)
                else:
                    left_objects, left_bytes = left_objects + 1, left_bytes + length
                    walk.only_here(ns, fingerprint, length)
            await mover.order(walk.take(rest=True))
        finally:
            await mover.finish()
        # As the walk has met it: the index may count what came or went meanwhile.
        progress.remaining_objects = left_objects - mover.moved_objects
        progress.remaining_bytes = left_bytes - mover.moved_bytes
        if mover.moved_objects:
            progress.phase = DrainPhase.MOVING
        progress.trouble = mover.trouble
        return mover

    def _targets(self, source: Segment) -> list[Target]:
        return [
            Target(s.index, s.record.endpoint.capacity_bytes, s.used_bytes)
            for s in self._state.segments
            if s is not source
            and s.placeable
            and s.index not in self._data_paths.shut
            and self._copies.can_copy(s.index)
        ]

    def _held_elsewhere(self, fingerprint: bytes, source: Segment) -> bool:
        """By a segment that stays, as far as anybody knows."""
        found = self._state.index.find(fingerprint)
        if found is None:
            return False
        holders, _ = found
        if len(holders) < 2 and source.index in holders:
            return False
        return any(
            s.index in holders and s.state is SegmentState.LIVE and s.registered
            for s in self._state.segments
            if s is not source
        )

    async def _hottest(self, segment: Segment) -> AsyncIterator[tuple[bytes, bytes, int]]:
        """(namespace, fingerprint, length) of all pages, in the segment's own order. Raises _Interrupted."""
        after: Any = None
        while True:
            try:
                answers = await self._questions.ask(
                    partial(_page_request, after), PAGE_TIMEOUT_S, segment_index=segment.index
                )
            except TooManyQuestions as error:
                raise _Interrupted(str(error)) from None
            told = answers.given.get(segment.index)
            if not isinstance(told, pb.HottestTold):
                raise _Interrupted("the segment does not answer")
            try:
                groups = decode_groups(told.groups)
            except WireError as error:
                raise _Interrupted(f"the segment says what can't be: {error}") from None
            for group in groups:
                if group.op is not JournalOp.ADD or not self._state.namespaces.is_current(group.ns):
                    continue  # cleared meanwhile
                for i, length in enumerate(group.lengths):
                    at = i * FINGERPRINT_BYTES
                    yield group.ns, group.fingerprints[at : at + FINGERPRINT_BYTES], length
            if told.last or not groups:
                return
            after = told.walk


def _page_request(after: Any, question: int) -> Any:
    asked = pb.TellHottest(question=question, entries_max=PAGE_ENTRIES, after=after)
    return pb.MasterMessage(tell_hottest=asked)


def _say(segment: Segment, progress: DrainProgress) -> None:
    fields: dict[str, Any] = {
        "segment_id": segment.segment_id,
        "moved_objects": progress.moved_objects,
        "moved_bytes": progress.moved_bytes,
        "remaining_objects": progress.remaining_objects,
        "remaining_bytes": progress.remaining_bytes,
    }
    if progress.phase is DrainPhase.DRAINED:
        log_event(logger, logging.INFO, "segment_drained", **fields)
    else:
        log_event(logger, logging.WARNING, "drain_out_of_room", **fields)


class _Mover:
    """Has a walk's orders carried out, a few at a time."""

    def __init__(self, copies: ObjectCopies, walk: DrainWalk, source: int, progress: DrainProgress) -> None:
        self._copies = copies
        self._walk = walk
        self._source = source
        self._progress = progress
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self.moved_objects = 0
        self.moved_bytes = 0
        self._refused = False
        self.trouble = ""

    @property
    def no_room(self) -> bool:
        """Something fitted nowhere."""
        return self._refused or self._walk.left_objects > 0

    def safe(self, objects: int, size_bytes: int) -> None:
        """So many more of the source's pages are known to be elsewhere."""
        progress = self._progress
        if progress.phase is DrainPhase.MOVING:
            progress.remaining_objects = max(0, progress.remaining_objects - objects)
            progress.remaining_bytes = max(0, progress.remaining_bytes - size_bytes)

    async def order(self, orders: list[MoveOrder]) -> None:
        """Returns when all of them are on their way."""
        for order in orders:
            while len(self._tasks) >= ORDERS_MAX:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.create_task(self._carry_out(order), name="drain-order")
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()

    async def finish(self) -> None:
        """Waits for what is under way; takes it back where the walk itself is cancelled."""
        try:
            while self._tasks:
                await asyncio.wait(self._tasks)
        except asyncio.CancelledError:
            for task in self._tasks:
                task.cancel()
            raise
        if self._failure is not None:
            raise self._failure

    async def _carry_out(self, order: MoveOrder) -> None:
        refused = await self._copy(order, order.may_evict)
        if not refused:
            return
        again = MoveOrder(order.target, order.ns, may_evict=True)
        if not order.may_evict:
            self._walk.target_is_full(order.target)
            for i in refused:
                if order.hot[i]:
                    again.add(order.fingerprints[i], order.lengths[i], hot=True)
        if again.fingerprints:
            refused = await self._copy(again, may_evict=True)
        self._refused = self._refused or bool(refused)

    async def _copy(self, order: MoveOrder, may_evict: bool) -> list[int]:
        """Those of them that found no room."""
        outcome = await self._copies.copy(
            order.target, self._source, order.ns, order.fingerprints, may_evict=may_evict
        )
        for status, length in zip(outcome.statuses, order.lengths, strict=True):
            if status in (Status.OK, Status.EXISTS):
                self.moved_objects += 1
                self.moved_bytes += length
                self._progress.moved_objects += 1
                self._progress.moved_bytes += length
                self.safe(1, length)
        if outcome.trouble:
            self.trouble = outcome.trouble
            log_throttled(
                logger,
                logging.WARNING,
                "drain_hindered",
                str(order.target),
                segment=self._source,
                target=order.target,
                why=outcome.trouble,
            )
        return [i for i, status in enumerate(outcome.statuses) if status is Status.NO_SPACE]
