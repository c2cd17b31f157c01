"""Questions to segments: who is asked, who has answered, and whom nobody waits for any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvstore.master import segment_questions
from kvstore.master.segment_questions import Answers, Respondent, SegmentQuestions, TooManyQuestions


class Peer:
    def __init__(self, questions: SegmentQuestions, session: int, index: int) -> None:
        self.session = session
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        questions.joined(session, Respondent(index, self.heard.put_nowait))


def ask(questions: SegmentQuestions) -> asyncio.Task[Answers]:
    """A question that is its own number, and waits long."""
    return asyncio.create_task(questions.ask(lambda number: number, 60))


async def test_a_question_is_over_when_all_have_answered() -> None:
    questions = SegmentQuestions()
    one, two = Peer(questions, 1, 10), Peer(questions, 2, 20)
    task = ask(questions)
    number = await one.heard.get()
    assert await two.heard.get() == number
    questions.answered(2, number, "b")
    assert not task.done()
    questions.answered(1, number, "a")
    answers = await task
    assert (answers.given, answers.silent) == ({10: "a", 20: "b"}, [])


async def test_nobody_waits_for_a_segment_that_has_left() -> None:
    questions = SegmentQuestions()
    one, two = Peer(questions, 1, 10), Peer(questions, 2, 20)
    task = ask(questions)
    number = await one.heard.get()
    assert await two.heard.get() == number
    questions.answered(1, number, "a")
    questions.left(2)
    answers = await task
    assert (answers.given, answers.silent) == ({10: "a"}, [20])
    assert (await questions.ask(lambda number: number, 0.01)).silent == [10]


async def test_who_does_not_answer_in_time_is_named_and_heard_no_more() -> None:
    questions = SegmentQuestions()
    peer = Peer(questions, 1, 10)
    answers = await questions.ask(lambda number: number, 0.01)
    assert (answers.given, answers.silent) == ({}, [10])
    questions.answered(1, await peer.heard.get(), "late")
    assert answers.given == {}


async def test_where_nobody_takes_questions_the_answer_is_there_at_once() -> None:
    assert await SegmentQuestions().ask(lambda number: number, 60) == Answers()


async def test_an_answer_to_what_was_not_asked_of_it_is_not_listened_to() -> None:
    questions = SegmentQuestions()
    one = Peer(questions, 1, 10)
    task = ask(questions)
    number = await one.heard.get()
    questions.answered(2, number, "not asked")
    questions.answered(1, number + 1, "another question")
    questions.answered(1, number, "right")
    questions.answered(1, number, "again")
    assert (await task).given == {10: "right"}


async def test_questions_that_wait_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_questions, "ASKED_MAX", 2)
    questions = SegmentQuestions()
    peer = Peer(questions, 1, 10)
    tasks = [ask(questions) for _ in range(2)]
    numbers = [await peer.heard.get() for _ in tasks]
    with pytest.raises(TooManyQuestions, match="2 questions"):
        await questions.ask(lambda number: number, 60)
    for number in numbers:
        questions.answered(1, number, "a")
    await asyncio.gather(*tasks)
    task = ask(questions)
    questions.answered(1, await peer.heard.get(), "b")
    assert (await task).given == {10: "b"}
