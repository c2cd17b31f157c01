"""What operators are told of intents when a segment answers what can't be."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

from kvstore.v1 import control_pb2 as pb

from kvstore.master.directory import Directory
from kvstore.master.ports.keeping import retention
from kvstore.master.segment_questions import Respondent, SegmentQuestions

NS = b"a space."
U64_MAX = (1 << 64) - 1


@dataclass
class Asked:
    """Of a directory what is needed here: two segments that take questions."""

    questions: SegmentQuestions = field(default_factory=SegmentQuestions)

    def __post_init__(self) -> None:
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        for session in (1, 2):
            self.questions.joined(session, Respondent(session, self.heard.put_nowait))

    def is_current(self, ns: bytes) -> bool:
        return ns == NS

    def segment_map(self) -> list[Any]:
        return []

    async def retention(self, answers: list[Any]) -> Any:
        asking = asyncio.create_task(retention(cast(Directory, self), 60))
        number = (await self.heard.get()).tell_retention.question
        for session, answer in enumerate(answers, 1):
            self.questions.answered(session, number, answer)
        return await asking


def told(number: int) -> Any:
    one = pb.NamespaceRetention(id=NS, retained_bytes=number, retained_objects=number)
    return pb.RetentionTold(namespace_bytes_max=number, namespaces=[one, one])


async def test_numbers_that_add_up_to_more_than_a_field_holds_are_told_as_its_largest() -> None:
    said = await Asked().retention([told(U64_MAX), told(2)])
    (space,) = said.namespaces
    assert (space.retained_bytes, space.retained_objects) == (U64_MAX, U64_MAX)
    assert said.namespace_bytes_max == U64_MAX


async def test_an_answer_of_another_kind_is_left_out() -> None:
    said = await Asked().retention([pb.Kept(kept=3), told(2)])
    (space,) = said.namespaces
    assert (space.retained_bytes, said.namespace_bytes_max) == (4, 2)
