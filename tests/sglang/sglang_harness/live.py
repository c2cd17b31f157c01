"""One running server and one store for many statements: each with prompts of its own, so that none depends on another."""

from __future__ import annotations

import itertools
import re
import time
from typing import Any

from sglang_harness.server import SGLangServer, StorageRefusedError, kvstore_config
from support.processes import Cluster
from support.waiting import wait_until

PAGE_TOKENS = 16
PROMPT_TOKENS = 333
WHOLE_PAGES_TOKENS = 320
NEW_TOKENS = 24
STORED_TIMEOUT_S = 60.0
IDLE_TIMEOUT_S = 60.0
PROMPTS_MAX = 280
# What is added up in another order agrees to float32 rounding; a greedy token may be another one where two are that close.
TOLERANCE, MARGIN, CLEAR_TOKENS_MIN = 1e-3, 1e-2, 8

Answer = dict[str, Any]
_numbers = itertools.count(1)


def new_prompt(tokens: int = PROMPT_TOKENS, number: int | None = None) -> list[int]:
    """One whose first page is like no other's. `number`: always this one, below PROMPTS_MAX."""
    number = next(_numbers) if number is None else number
    assert number < PROMPTS_MAX
    return [
        3 + (number * 37 + place * place * (30 + number) + place * 7) % PROMPTS_MAX for place in range(tokens)
    ]


class LiveServer:
    """A server and the store that it is, or was, attached to."""

    def __init__(self, server: SGLangServer, store: Cluster) -> None:
        self.server = server
        self.store = store

    def config(self, **options: Any) -> dict[str, Any]:
        """The extra config that leads to the store."""
        return kvstore_config(self.store.masters, **options)

    def attach(
        self, policy: str = "wait_complete", write_policy: str = "write_through", **options: Any
    ) -> None:
        """Attaches the store anew, to empty caches. `options`: of the extra config."""
        self.detach()
        self.server.flush()
        self.server.attach_storage(self.config(**options), policy, hicache_write_policy=write_policy)

    def detach(self) -> None:
        """As soon as SGLang is idle: it refuses while a call into the storage runs, also one that no request waits for."""

        def detached() -> bool:
            try:
                self.server.detach_storage()
            except StorageRefusedError as refusal:
                if "idle" not in str(refusal):
                    raise
                return False
            return True

        wait_until(detached, "the storage is detached", IDLE_TIMEOUT_S, poll_s=0.2)

    def ask(self, prompt: list[int], **more: Any) -> Answer:
        """The answer, whatever is cached."""
        return self.server.generate(prompt, NEW_TOKENS, **more)

    def ask_anew(self, prompt: list[int], from_storage: int, **more: Any) -> Answer:
        """The answer with the caches on device and host emptied before, of which exactly so many tokens must come from the
        storage.
        """
        self.server.flush()
        answer = self.ask(prompt, **more)
        assert loaded_tokens(answer) == from_storage, f"{answer['meta_info']}\n{self.server.log()}"
        return answer

    def ask_and_store(self, prompt: list[int], tokens: int = WHOLE_PAGES_TOKENS, **more: Any) -> Answer:
        """The cold answer, once so many tokens of it are in the storage."""
        before = self.stored_tokens()
        answer = self.ask_anew(prompt, from_storage=0, **more)
        self.wait_stored(before + tokens)
        return answer

    def stored_tokens(self) -> float:
        """What SGLang says it has stored since the server was started."""
        return counter(self.server, "backuped_tokens_total")

    def wait_stored(self, tokens: float) -> None:
        """Until SGLang says that it has stored so many since the server was started."""
        wait_until(
            lambda: self.stored_tokens() >= tokens,
            f"{tokens:g} tokens are stored",
            STORED_TIMEOUT_S,
            poll_s=0.1,
        )


def counter(server: SGLangServer, name: str) -> float:
    """One of SGLang's counters, over all its ranks."""
    found = re.findall(rf"^sglang:{name}\{{.*\}} ([0-9.e+]+)$", server.metrics(), re.MULTILINE)
    return sum(map(float, found))


def loaded_tokens(answer: Answer) -> int:
    """How many tokens of the prompt came from the storage."""
    details = answer["meta_info"].get("cached_tokens_details") or {}
    return int(details.get("storage", 0))


def check_equal(answer: Answer, cold: Answer) -> None:
    """The same tokens with the same log-probabilities."""
    assert answer["output_ids"] == cold["output_ids"]
    ours, theirs = (
        [token[0] for token in each["meta_info"]["output_token_logprobs"]] for each in (answer, cold)
    )
    assert ours == theirs


def clear_tokens(answer: Answer) -> int:
    """How many tokens from the first on are clearly the best at their places; asked with top_logprobs=2."""
    margins = (best[0] - second[0] for best, second in answer["meta_info"]["output_top_logprobs"])
    return len(list(itertools.takewhile(lambda margin: margin > MARGIN, margins)))


def check_close(answer: Answer, cold: Answer) -> None:
    """The same to rounding: for KV that was computed in pieces, or together with another request's, and so added up in another
    order. Compared as far as the cold answer's tokens are clearly the best.
    """
    compared = clear_tokens(cold)
    assert compared >= CLEAR_TOKENS_MIN, f"only {compared} tokens can be compared: take another prompt"
    ours, theirs = (each["meta_info"]["output_token_logprobs"][:compared] for each in (answer, cold))
    assert [token[1] for token in ours] == [token[1] for token in theirs], answer["meta_info"]
    for our, their in zip(ours, theirs, strict=True):
        assert abs(our[0] - their[0]) < TOLERANCE, answer["meta_info"]


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began
