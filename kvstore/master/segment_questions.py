"""Questions to the segments that are attached, over their Attach streams: each is asked once, and whoever does not answer in time
is named. Event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

TIMEOUT_S = 5.0
ASKED_MAX = 64
"""Questions at a time; one more is refused."""


@dataclass(frozen=True)
class Respondent:
    """A segment that takes questions. `ask` queues a message for it and returns."""

    segment_index: int
    ask: Callable[[Any], None]


@dataclass
class Answers:
    """What a question has come to."""

    given: dict[int, Any] = field(default_factory=dict)  # by the segment's index
    silent: list[int] = field(default_factory=list)
    """Segments that were asked, and left or did not answer in time."""


@dataclass
class _Question:
    waited_for: set[int]  # sessions
    over: asyncio.Future[None]
    given: dict[int, Any] = field(default_factory=dict)  # by session


class TooManyQuestions(Exception):
    """ASKED_MAX wait for answers."""


class SegmentQuestions:
    def __init__(self) -> None:
        self._respondents: dict[int, Respondent] = {}  # by session
        self._questions: dict[int, _Question] = {}
        self._count = 0

    def joined(self, session: int, respondent: Respondent) -> None:
        """It can be asked from now on."""
        self._respondents[session] = respondent

    def left(self, session: int) -> None:
        """Its session is over: nobody waits for it any more."""
        self._respondents.pop(session, None)
        for question in self._questions.values():
            self._waited(question, session)

    def answered(self, session: int, number: int, answer: Any) -> None:
        """What it says to question `number`. One that is over, or was not put to it, is not listened to."""
        question = self._questions.get(number)
        if question is not None and session in question.waited_for:
            question.given[session] = answer
            self._waited(question, session)

    async def ask(
        self,
        message_of: Callable[[int], Any],
        timeout_s: float = TIMEOUT_S,
        *,
        segment_index: int | None = None,
    ) -> Answers:
        """Puts `message_of(number of the question)` to all of them, or to this one. Raises TooManyQuestions."""
        if len(self._questions) >= ASKED_MAX:
            raise TooManyQuestions(f"{ASKED_MAX} questions to the segments wait for answers: try again")
        self._count += 1
        number = self._count
        asked = {
            session: each
            for session, each in self._respondents.items()
            if segment_index is None or each.segment_index == segment_index
        }
        question = _Question(set(asked), asyncio.get_running_loop().create_future())
        self._questions[number] = question
        try:
            message = message_of(number)
            for respondent in asked.values():
                respondent.ask(message)
            if question.waited_for:
                await asyncio.wait({question.over}, timeout=timeout_s)
        finally:
            del self._questions[number]
        return Answers(
            {asked[session].segment_index: answer for session, answer in question.given.items()},
            sorted(
                respondent.segment_index
                for session, respondent in asked.items()
                if session not in question.given
            ),
        )

    @staticmethod
    def _waited(question: _Question, session: int) -> None:
        question.waited_for.discard(session)
        if not question.waited_for and not question.over.done():
            question.over.set_result(None)
