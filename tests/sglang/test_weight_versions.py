"""Weights that are exchanged while SGLang runs: pages of one version never answer for another."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.runtime_context import get_context
from sglang_harness.case import Case
from sglang_harness.engine import Engine
from sglang_harness.server import SGLangServer
from sglang_harness.tiny_model import make_tiny_model
from test_server import NEW_TOKENS, PROMPT, WHOLE_PAGES_TOKENS, check_same_answer, wait_for_backup

from support.processes import Cluster
from support.running_cluster import running_cluster
from support.waiting import wait_until


def test_the_controller_stores_pages_of_new_weights_only_after_a_flush_and_never_beside_the_old(
    store: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"masters": store.masters, "tag": "weight versions", "deadline_ms": 3000}
    with get_context().override_server_args(), Engine(Case(pages=8, options=options)) as engine:
        tokens = engine.case.tokens
        slots = engine.host_pool.alloc(len(tokens))

        def exchange_weights(version: str) -> None:
            get_context().override("scheduler.weight_version", weight_version=version)

        engine.fill(slots, seed=1)
        old = engine.page_bytes(slots)
        assert engine.backup(slots, tokens)[1] == len(tokens)
        assert engine.prefetch(tokens).hit_tokens == len(tokens)

        exchange_weights("2")
        with caplog.at_level(logging.WARNING, "hicache_adapter"):
            assert engine.prefetch(tokens).hit_tokens == 0
            assert engine.backup(slots, tokens)[1] == 0
        assert "/flush_cache" in caplog.text

        engine.controller.reset()  # what a flush does
        engine.fill(slots, seed=2)
        new = engine.page_bytes(slots)
        assert new != old
        assert engine.backup(slots, tokens)[1] == len(tokens)

        def loaded() -> list[bytes]:
            engine.wipe()
            got = engine.prefetch(tokens)
            assert got.completed_tokens == len(tokens)
            pages = engine.page_bytes(got.host_indices)
            engine.host_pool.free(got.host_indices)
            return pages

        assert loaded() == new
        exchange_weights("default")
        engine.controller.reset()
        assert loaded() == old


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tp_size", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_server_whose_weights_are_updated_never_loads_pages_of_the_old_ones(
    tmp_path: Path, tp_size: int
) -> None:
    models = {
        version: make_tiny_model(tmp_path / version, seed=seed) for version, seed in (("1", 1), ("2", 2))
    }
    with running_cluster(tmp_path / "store") as store:
        extra_config = {
            "backend_name": "kvstore",
            "module_path": "hicache_adapter",
            "class_name": "KVStoreHiCache",
            "interface_v1": 1,
            "prefetch_threshold": 16,
            "masters": store.masters,
        }
        with SGLangServer("server", models["1"], tmp_path, extra_config, tp_size=tp_size) as server:

            def exchange_weights(version: str, name: str | None) -> None:
                server.flush()  # waits for what still runs
                assert server.update_weights(models[version], name)

            def ask(from_storage: int, prompt: list[int] = PROMPT) -> dict[str, Any]:
                server.flush()
                answer = server.generate(prompt, NEW_TOKENS)
                details = answer["meta_info"].get("cached_tokens_details") or {}
                assert details.get("storage", 0) == from_storage, server.log()
                return answer

            old = ask(from_storage=0)
            wait_for_backup(server, tp_size * WHOLE_PAGES_TOKENS)
            check_same_answer(ask(from_storage=WHOLE_PAGES_TOKENS), old)

            exchange_weights("2", "2")
            new = ask(from_storage=0)
            assert new["output_ids"] != old["output_ids"]
            wait_for_backup(server, 2 * tp_size * WHOLE_PAGES_TOKENS)
            check_same_answer(ask(from_storage=WHOLE_PAGES_TOKENS), new)

            exchange_weights("1", "default")
            check_same_answer(ask(from_storage=WHOLE_PAGES_TOKENS), old)

            exchange_weights("2", None)
            check_same_answer(ask(from_storage=0), new)
            server.name_weights("2")
            check_same_answer(ask(from_storage=WHOLE_PAGES_TOKENS), new)

            check_updates_under_load(server, models, exchange_weights, ask)


def check_updates_under_load(
    server: SGLangServer,
    models: dict[str, Path],
    exchange_weights: Callable[[str, str], None],
    ask: Callable[..., Any],
) -> None:
    """Whatever was asked after the answer to an update is answered as if nothing had been stored ever."""
    prompts = [PROMPT[shift : shift + 160] for shift in (1, 2, 3, 4)]
    cold: dict[str, list[dict[str, Any]]] = {}
    for version in models:
        exchange_weights(version, f"cold {version}")
        cold[version] = [ask(from_storage=0, prompt=prompt) for prompt in prompts]
    exchange_weights("1", "loaded 1")
    with Load(server, prompts) as load:
        load.wait_answers(12)
        for version in ("2", "1", "2"):
            load.begin(None)
            if not server.update_weights(models[version], f"loaded {version}"):
                with load.paused():  # as SGLang then wants it
                    server.flush()
            asked_after = load.begin(version)
            load.wait_answers(12, since=asked_after)
    answers = load.answers()
    assert {version for version, _, _ in answers} == {None, "1", "2"}
    from_storage = [answer for version, _, answer in answers if version and storage_tokens(answer)]
    assert from_storage, "nothing was loaded under load"
    for version, prompt, answer in answers:
        if version is not None:
            check_like(answer, cold[version][prompt])
    for prompt, expected in enumerate(cold["2"]):
        assert expected["output_ids"] != cold["1"][prompt]["output_ids"]


def storage_tokens(answer: dict[str, Any]) -> int:
    return int((answer["meta_info"].get("cached_tokens_details") or {}).get("storage", 0))


def check_like(answer: dict[str, Any], expected: dict[str, Any]) -> None:
    """Tokens are equal; log-probabilities up to what other requests in the batch do to their last digits."""
    assert answer["output_ids"] == expected["output_ids"]
    pairs = zip(
        *(a["meta_info"]["output_token_logprobs"] for a in (answer, expected)),
        strict=True,
    )
    assert all(abs(got[0] - wanted[0]) < 1e-3 for got, wanted in pairs)


class Load:
    """Clients that ask all the time, each prompt again and again. A context manager."""

    _CLIENTS = 3

    def __init__(self, server: SGLangServer, prompts: list[list[int]]) -> None:
        self._server = server
        self._prompts = prompts
        self._answers: list[tuple[int, str | None, int, dict[str, Any]]] = []
        self._stop = threading.Event()
        self._may_ask = threading.Event()
        self._may_ask.set()
        self._version: tuple[int, str | None] = (0, None)
        self._threads = ThreadPoolExecutor(self._CLIENTS)
        self._clients: list[Future[None]] = []

    def __enter__(self) -> Load:
        self._clients = [self._threads.submit(self._ask_on, client) for client in range(self._CLIENTS)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._may_ask.set()
        self._threads.shutdown()

    def _ask_on(self, client: int) -> None:
        number = client
        while not self._stop.is_set():
            self._may_ask.wait()
            number += 1
            since, version = self._version
            prompt = number % len(self._prompts)
            answer = self._server.generate(self._prompts[prompt], NEW_TOKENS)
            if self._version[0] != since:
                version = None  # what is served has changed while it ran
            self._answers.append((since, version, prompt, answer))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing new is asked."""
        self._may_ask.clear()
        try:
            yield
        finally:
            self._may_ask.set()

    def begin(self, version: str | None) -> int:
        """What is asked from now on is answered with these weights; None: with any."""
        since = self._version[0] + 1
        self._version = (since, version)
        return since

    def wait_answers(self, count: int, since: int = 0) -> None:
        """Until so many have come of what was asked since then."""

        def enough() -> bool:
            for client in self._clients:
                if client.done():
                    client.result()
            return sum(asked == since for asked, _, _, _ in list(self._answers)) >= count

        wait_until(enough, f"{count} answers", timeout_s=120)

    def answers(self) -> list[tuple[str | None, int, dict[str, Any]]]:
        """(version of the weights, or None where that changed meanwhile; number of the prompt; answer)"""
        return [(version, prompt, answer) for _, version, prompt, answer in self._answers]
