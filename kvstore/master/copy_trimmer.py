"""Has segments drop the copies that nobody asked for: two clients that put the same page at the same time leave one each, and so
does a segment that comes back with pages which were stored elsewhere meanwhile.

The index names pages of which another copy has come. Once that has settled, those of them that have more copies than the most that
a put of their namespace has asked this master for lose the others, at a bounded rate. Only copies on segments that are heard
count as left, and a segment drops nothing that is pinned or being read. A draining segment's copies go with it: they neither count
nor are dropped, so that readers that know them have them until then. Event loop only.
"""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass, field

from kvstore.master.metrics import MasterMetrics
from kvstore.master.segment_questions import SegmentQuestions, TooManyQuestions
from kvstore.master.state.directory_state import DirectoryState
from kvstore.master.state.surplus import Holder, surplus
from kvstore.v1 import control_pb2
from kvstore_client.protocol import FINGERPRINT_BYTES, REPLICAS_MAX, SegmentState, Status

PERIOD_S = 0.5
DROPPED_PER_S = 2_000
ORDER_MAX = 1_024
"""Objects of one order, and so how long a segment's mutex is held for it."""
TRACKED_MAX = 65_536
"""Pages that wait for their turn; of more the copies stay until they are evicted."""
WANTED_MAX = 1_024
SETTLE_S = 2.0
"""Who has just been told where a page is should find it there."""
TRIES_MAX = 8
DEAF_S = 60.0
"""How long a segment that answers no order (one of an earlier release) is not asked."""
_ANSWER_S = 5.0


@dataclass(order=True)
class _Suspect:
    due: float
    fingerprint: bytes = field(compare=False)
    tries: int = field(default=0, compare=False)


class CopyTrimmer:
    def __init__(self, state: DirectoryState, questions: SegmentQuestions, metrics: MasterMetrics) -> None:
        self._state = state
        self._questions = questions
        self._metrics = metrics
        self._wanted: dict[bytes, int] = {}  # by namespace; 1 where there is none
        self._suspects: list[_Suspect] = []  # a heap
        self._waiting: set[bytes] = set()  # their fingerprints
        self._deaf_until: dict[int, float] = {}  # by segment

    def wanted(self, ns: bytes, replicas: int) -> None:
        """A put asks for so many copies of pages of a current namespace."""
        if replicas > self._wanted.get(ns, 1):
            self._wanted[ns] = replicas

    async def run(self) -> None:
        """For as long as this master leads."""
        self._state.index.track_duplicates(TRACKED_MAX)
        try:
            while True:
                await asyncio.sleep(PERIOD_S)
                await self.look(asyncio.get_running_loop().time())
        finally:
            self._state.index.track_duplicates(0)

    async def look(self, now: float) -> None:
        """Takes in what the index has noted, and has dropped what is due, as much of it as the rate allows for PERIOD_S."""
        self._collect(now)
        await self._trim(now)
        self._metrics.copies_to_trim.set(len(self._suspects))

    def _collect(self, now: float) -> None:
        found = self._state.index.take_duplicates(max(0, TRACKED_MAX - len(self._suspects)))
        for at in range(0, len(found), FINGERPRINT_BYTES):
            self._put_off(found[at : at + FINGERPRINT_BYTES], now + SETTLE_S)
        if len(self._wanted) > WANTED_MAX:  # most are of namespaces that were cleared
            self._wanted = {
                ns: count for ns, count in self._wanted.items() if self._state.namespaces.is_current(ns)
            }

    async def _trim(self, now: float) -> None:
        orders: dict[tuple[int, bytes], list[_Suspect]] = {}
        holders = self._holders()
        budget = int(DROPPED_PER_S * PERIOD_S)
        while budget > 0 and self._suspects and self._suspects[0].due <= now:
            suspect = heapq.heappop(self._suspects)
            self._waiting.discard(suspect.fingerprint)
            ns, segments = self._state.index.vouched_holders(suspect.fingerprint)
            there = [holders[index] for index in segments if index in holders]
            too_many = surplus(there, self._wanted.get(ns, 1)) if there else []
            for index in too_many:
                if now >= self._deaf_until.get(index, now):
                    orders.setdefault((index, ns), []).append(suspect)
                    budget -= 1
            if len(segments) == REPLICAS_MAX and too_many:
                self._again(suspect, now)  # there may be more than are named at a time
        for (index, ns), suspects in orders.items():
            for at in range(0, len(suspects), ORDER_MAX):
                await self._order(now, index, ns, suspects[at : at + ORDER_MAX])

    def _holders(self) -> dict[int, Holder]:
        return {
            segment.index: Holder(
                segment.index,
                segment.record.endpoint.host,
                segment.state is SegmentState.SUSPECT,
                segment.used_bytes / max(1, segment.record.endpoint.capacity_bytes),
            )
            for segment in self._state.segments
            if segment.serving and segment.registered and segment.state is not SegmentState.DRAINING
        }

    async def _order(self, now: float, index: int, ns: bytes, suspects: list[_Suspect]) -> None:
        fingerprints = b"".join(suspect.fingerprint for suspect in suspects)
        statuses = b""
        try:
            answers = await self._questions.ask(
                lambda question: control_pb2.MasterMessage(
                    drop_objects=control_pb2.DropObjects(
                        question=question, namespace=ns, fingerprints=fingerprints
                    )
                ),
                _ANSWER_S,
                segment_index=index,
            )
            said = answers.given.get(index)
            if isinstance(said, control_pb2.Dropped):
                statuses = said.statuses
            else:
                self._deaf_until[index] = now + DEAF_S
        except TooManyQuestions:
            pass
        if len(statuses) != len(suspects):  # it has left, or says what can't be
            statuses = bytes((Status.UNAVAILABLE,)) * len(suspects)
        self._metrics.copies_trimmed.inc(statuses.count(Status.OK))
        for suspect, status in zip(suspects, statuses, strict=True):
            if status == Status.UNAVAILABLE:
                self._again(suspect, now)

    def _again(self, suspect: _Suspect, now: float) -> None:
        if suspect.tries + 1 < TRIES_MAX and len(self._suspects) < TRACKED_MAX:
            self._put_off(suspect.fingerprint, now + SETTLE_S * 2**suspect.tries, suspect.tries + 1)

    def _put_off(self, fingerprint: bytes, due: float, tries: int = 0) -> None:
        if fingerprint not in self._waiting:
            self._waiting.add(fingerprint)
            heapq.heappush(self._suspects, _Suspect(due, fingerprint, tries))
