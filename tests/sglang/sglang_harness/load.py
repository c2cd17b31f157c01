"""What an engine does all day: backs prompts up and loads earlier ones again, until it is told to stop. Nothing of what goes
wrong ends it; all of it is reported."""

import random
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from sglang_harness.case import Case
from sglang_harness.engine import Engine

CALL_TIMEOUT_S = 20.0
ERRORS_KEPT = 5


def prompt_case(case: Case, number: int) -> Case:
    """The load's prompt of this number: other tokens and other bytes than any other one's."""
    return replace(case, token_base=case.token_base + number * 100_000, seed=case.seed * 100_000 + number)


class Load:
    """`progress` is a file with the number of prompts that are stored, rewritten for each; `stop` one whose coming ends it."""

    def __init__(self, engine: Engine, progress: Path, stop: Path, prompts_max: int) -> None:
        self._engine = engine
        self._progress = progress
        self._stop = stop
        self._prompts_max = prompts_max
        self._rng = random.Random(engine.case.seed)
        self.stored_pages: dict[int, int] = {}  # by prompt: how many of its pages SGLang counts as stored
        self.calls = self.pages_read = self.pages_asked = self.wrong_pages = 0
        self.slowest_s = 0.0
        self.errors: list[str] = []
        self.error_count = 0

    def run(self) -> dict[str, Any]:
        """The report."""
        number = 0
        while not self._stop.exists():
            if len(self.stored_pages) < self._prompts_max:
                self._call(self._write, number)
                number += 1
            if self.stored_pages:
                self._call(self._read, self._rng.choice(list(self.stored_pages)))
            time.sleep(0.02)
        return {
            "stored_pages": {str(each): pages for each, pages in self.stored_pages.items()},
            "calls": self.calls,
            "pages_asked": self.pages_asked,
            "pages_read": self.pages_read,
            "wrong_pages": self.wrong_pages,
            "slowest_s": self.slowest_s,
            "errors": self.errors,
            "error_count": self.error_count,
        }

    def verify(self, stored_pages: dict[int, int]) -> dict[str, Any]:
        """How many of these pages are there, and right."""
        for number, pages in stored_pages.items():
            self.stored_pages[number] = pages
            self._call(self._read, number)
        return {
            "pages_asked": self.pages_asked,
            "pages_read": self.pages_read,
            "wrong_pages": self.wrong_pages,
            "errors": self.errors,
        }

    def _call(self, what: Any, number: int) -> None:
        began = time.monotonic()
        try:
            what(prompt_case(self._engine.case, number), number)
        except Exception:
            self.error_count += 1
            self.errors = [*self.errors, traceback.format_exc()][-ERRORS_KEPT:]
        self.calls += 1
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def _write(self, case: Case, number: int) -> None:
        engine = self._engine
        slots = engine.host_pool.alloc(case.pages * case.page_size)
        try:
            engine.fill(slots, case.seed)
            _, stored_tokens = engine.backup(slots, case.tokens, CALL_TIMEOUT_S)
        finally:
            engine.host_pool.free(slots)
        if stored_tokens:
            self.stored_pages[number] = stored_tokens // case.page_size
            self._progress.write_text(str(len(self.stored_pages)))

    def _read(self, case: Case, number: int) -> None:
        engine = self._engine
        self.pages_asked += self.stored_pages[number]
        got = engine.prefetch(case.tokens, CALL_TIMEOUT_S)
        if got.host_indices is None:
            return
        pages = min(got.completed_tokens // case.page_size, self.stored_pages[number])
        expected = engine.host_pool.alloc(case.pages * case.page_size)
        try:
            engine.fill(expected, case.seed)
            pairs = zip(engine.page_bytes(got.host_indices), engine.page_bytes(expected), strict=False)
            self.wrong_pages += sum(found != wanted for found, wanted in list(pairs)[:pages])
            self.pages_read += pages
        finally:
            engine.host_pool.free(expected)
            engine.host_pool.free(got.host_indices)
