"""Whole servers with SGLang's own failure injector between HiCache and the store: calls that take a while, and calls that fail."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sglang_harness.live import (
    CLEAR_TOKENS_MIN,
    Answer,
    LiveServer,
    check_close,
    clear_tokens,
    loaded_tokens,
    new_prompt,
)
from sglang_harness.server import SGLangServer, kvstore_config
from sglang_harness.tiny_model import make_tiny_model

from support.running_cluster import running_cluster
from support.waiting import wait_until

DELAY_S_MAX, FAILURE_PROBABILITY = 0.1, 0.25
BATCH_TOKENS = 128 * 16  # what SGLang loads at a time
PROMPT_TOKENS = (40, 333, 900, 2700)


@pytest.fixture
def live(tmp_path: Path, tp_size: int) -> Iterator[LiveServer]:
    injector = {
        "SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY": str(DELAY_S_MAX),
        "SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE": str(FAILURE_PROBABILITY),
    }
    settings = {"max-total-tokens": 8192}
    model = make_tiny_model(tmp_path / "model")
    with (
        running_cluster(tmp_path / "store") as store,
        SGLangServer(
            "server",
            model,
            tmp_path,
            kvstore_config(store.masters),
            tp_size=tp_size,
            settings=settings,
            environment=injector,
        ) as server,
    ):
        yield LiveServer(server, store)
        server.kill()


@pytest.mark.parametrize(
    ("tp_size", "rounds"),
    [
        (1, 20),
        pytest.param(1, 600, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
        # Each rank has dice of its own, so they disagree about what is there.
        pytest.param(2, 60, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
)
def test_no_answer_is_wrong_and_no_thread_dies_when_calls_into_the_store_fail_and_linger(
    live: LiveServer, rounds: int
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    assert "HiCache storage test injector enabled" in live.server.log_text()

    prompts: list[list[int]] = []
    cold: list[Answer] = []
    while len(prompts) < 2 * len(PROMPT_TOKENS):
        prompt = new_prompt(PROMPT_TOKENS[len(prompts) % len(PROMPT_TOKENS)])
        answer = live.ask_anew(prompt, from_storage=0, top_logprobs=2)
        if clear_tokens(answer) >= CLEAR_TOKENS_MIN:
            prompts.append(prompt)
            cold.append(answer)

    def ask(number: int) -> Answer:
        return live.ask(prompts[number], top_logprobs=2)

    loaded = []
    with ThreadPoolExecutor(2) as clients:
        for _ in range(rounds):
            live.server.flush()
            both = dice.sample(range(len(prompts)), 2)
            for number, answer in zip(both, clients.map(ask, both), strict=True):
                check_close(answer, cold[number])
                loaded.append(loaded_tokens(answer))
    print(f"tokens from the storage: {loaded}")
    assert 0 in loaded and any(loaded)

    # Each of SGLang's storage threads still does its work: one looks and loads, one stores.
    def loads() -> bool:
        live.server.flush()
        return loaded_tokens(live.ask(prompts[-1])) > BATCH_TOKENS

    def stores() -> bool:
        before = live.stored_tokens()
        live.ask(new_prompt())
        live.server.flush()  # waits for what is being stored
        return live.stored_tokens() > before

    wait_until(loads, "a prompt of several batches is loaded", 120.0)
    wait_until(stores, "a new prompt is stored", 120.0)
    assert live.server.is_alive()
