"""Has segments copy objects from each other: the mechanism of drains and whatever else moves pages. What is copied, and where to, is
decided elsewhere. Event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.master.metrics import MasterMetrics
from kvstore.master.segment_questions import SegmentQuestions, TooManyQuestions
from kvstore.master.state.directory_state import DirectoryState
from kvstore.master.state.segment_table import Segment
from kvstore.v1 import control_pb2 as pb
from kvstore_client.protocol import FETCH_ENTRIES_MAX, Status

ORDERS_MAX = 32
"""Orders on their way in all; more wait."""
ORDERS_A_TARGET_MAX = 2
ORDER_BYTES_MAX = 64 << 20
"""What callers cut their orders to, unless one object alone is more."""
TIMEOUT_S = 60.0
TIMEOUT_S_MAX = 600.0
ANSWER_S = 10.0
"""How much later than its timeout an order may be answered: the segment waits for its commit, and the answer travels."""


@dataclass(frozen=True)
class CopyOutcome:
    """What has become of an order. OK and EXISTS: the target has it, and the directory knows. NOT_COMMITTED: the target has it.
    UNAVAILABLE: not got to, order it again. Any other: as of a put; MISS: the source has it no more."""

    statuses: tuple[Status, ...]  # one an object
    copied_bytes: int = 0
    trouble: str = ""  # for people; empty: none

    @property
    def safe(self) -> int:
        """Objects that the target has and the directory knows there."""
        return sum(status in (Status.OK, Status.EXISTS) for status in self.statuses)


class ObjectCopies:
    def __init__(
        self, state: DirectoryState, questions: SegmentQuestions, metrics: MasterMetrics, bytes_per_s: int
    ) -> None:
        """`bytes_per_s`: that copies may move into one segment; 0: as fast as it goes."""
        self._state = state
        self._questions = questions
        self._metrics = metrics
        self._bytes_per_s = bytes_per_s
        self._room = asyncio.Semaphore(ORDERS_MAX)
        self._room_at: dict[int, asyncio.Semaphore] = {}  # by target

    def can_copy(self, segment_index: int) -> bool:
        """Whether it is attached, and of a release that copies and hands out."""
        return self._questions.takes_copy_orders(segment_index)

    async def copy(
        self,
        target: int,
        source: int,
        ns: bytes,
        fingerprints: Sequence[bytes],
        *,
        may_evict: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> CopyOutcome:
        """Has segment `target` copy these objects from segment `source`; both are indexes. The first are copied first. `may_evict`:
        the target may evict others for them; without it only free room is used, and not what its evictor keeps ahead.

        Does not raise for what segments do. To cancel it takes the order back. ValueError: more than FETCH_ENTRIES_MAX objects.
        """
        if len(fingerprints) > FETCH_ENTRIES_MAX:
            raise ValueError(f"{len(fingerprints)} objects, an order has at most {FETCH_ENTRIES_MAX}: cut it")
        room_at = self._room_at.setdefault(target, asyncio.Semaphore(ORDERS_A_TARGET_MAX))
        async with room_at, self._room:
            if (why := self._in_the_way(target, source)) is not None:
                return _nothing(len(fingerprints), why)
            endpoint = next(each for each in self._state.segments if each.index == source).record.endpoint
            timeout_s = min(timeout_s, TIMEOUT_S_MAX)
            self._metrics.copy_orders.inc()
            try:
                answers = await self._questions.ask(
                    lambda question: pb.MasterMessage(
                        copy_objects=pb.CopyObjects(
                            question=question,
                            host=endpoint.host,
                            tcp_port=endpoint.tcp_port,
                            unix_path=endpoint.unix_path,
                            pool_id=endpoint.pool_id,
                            namespace=ns,
                            fingerprints=b"".join(fingerprints),
                            may_evict=may_evict,
                            bytes_per_s=self._bytes_per_s,
                            timeout_ms=int(timeout_s * 1000),
                        )
                    ),
                    timeout_s + ANSWER_S,
                    segment_index=target,
                    taken_back_by=lambda question: pb.MasterMessage(
                        cancel_copy=pb.CancelCopy(question=question)
                    ),
                )
            except TooManyQuestions as error:
                return _nothing(len(fingerprints), str(error))
        said = answers.given.get(target)
        if not isinstance(said, pb.Copied) or len(said.statuses) != len(fingerprints):
            return _nothing(len(fingerprints), "the target does not answer")
        outcome = CopyOutcome(tuple(map(_status, said.statuses)), said.copied_bytes, said.trouble)
        self._metrics.copied_bytes.inc(said.copied_bytes)
        for status in outcome.statuses:
            self._metrics.copied_objects.labels(status.name.lower()).inc()
        return outcome

    def _in_the_way(self, target: int, source: int) -> str | None:
        if target == source:
            return "it is one and the same segment"
        segments: dict[int, Segment] = {each.index: each for each in self._state.segments}
        if source not in segments or target not in segments:
            return "the segment is gone"
        if not self.can_copy(target):
            return "the target is not attached, or is of a release that copies nothing"
        return None


def _status(code: int) -> Status:
    return Status(code) if code in Status.__members__.values() else Status.INTERNAL


def _nothing(objects: int, why: str) -> CopyOutcome:
    return CopyOutcome((Status.UNAVAILABLE,) * objects, 0, why)
