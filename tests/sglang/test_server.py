"""Whole SGLang servers: what one has computed, another one loads, and answers the same."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from sglang_harness.server import SGLangServer
from sglang_harness.tiny_model import make_tiny_model

from support.running_cluster import running_cluster

PROMPT_TOKENS = 333
WHOLE_PAGES_TOKENS = 320  # of 16 tokens each
NEW_TOKENS = 24
PROMPT = [3 + (number * number * 31 + number * 7) % 280 for number in range(PROMPT_TOKENS)]


@pytest.mark.timeout(1800)
def test_a_fresh_server_answers_from_pages_of_another_and_a_restarted_master_loses_none(
    tmp_path: Path,
) -> None:
    model = make_tiny_model(tmp_path / "model")
    with running_cluster(tmp_path / "store") as store:
        extra_config = {
            "backend_name": "kvstore",
            "module_path": "hicache_adapter",
            "class_name": "KVStoreHiCache",
            "interface_v1": 1,
            "prefetch_threshold": 16,
            "masters": store.masters,
        }

        def ask(name: str, stored_tokens: int) -> tuple[dict[str, Any], SGLangServer]:
            with SGLangServer(
                name, model, tmp_path, extra_config, new_interpreters=name == "first"
            ) as server:
                answer = server.generate(PROMPT, NEW_TOKENS)
                wait_for_backup(server, stored_tokens)
            return answer, server

        cold, first = ask("first", stored_tokens=WHOLE_PAGES_TOKENS)
        assert cold["meta_info"]["cached_tokens"] == 0
        warm, second = ask("second", stored_tokens=0)
        check_loaded(warm, second)
        check_same_answer(warm, cold)
        for pattern in (r"identity ([0-9a-f]{12})", r"namespace ([0-9a-f]{16})"):
            assert logged(first, pattern) == logged(second, pattern) != set()

        store.master.kill()
        store.start_master()
        after_restart, third = ask("third", stored_tokens=0)
        check_loaded(after_restart, third)
        check_same_answer(after_restart, cold)


def check_loaded(answer: dict[str, Any], server: SGLangServer) -> None:
    details = answer["meta_info"]["cached_tokens_details"]
    assert details["storage"] == WHOLE_PAGES_TOKENS, server.log()
    assert details["storage_backend"] == "KVStoreHiCache"


def check_same_answer(answer: dict[str, Any], expected: dict[str, Any]) -> None:
    assert answer["output_ids"] == expected["output_ids"]
    logprobs = [[token[0] for token in a["meta_info"]["output_token_logprobs"]] for a in (answer, expected)]
    assert logprobs[0] == logprobs[1]


def logged(server: SGLangServer, pattern: str) -> set[str]:
    return set(re.findall(pattern, server.log_text()))


def wait_for_backup(server: SGLangServer, tokens: int, timeout_s: float = 60.0) -> None:
    """Until SGLang's own counter says that so many tokens are in the storage."""
    ends_at = time.monotonic() + timeout_s
    while True:
        found = re.findall(
            r"^sglang:backuped_tokens_total\{.*\} ([0-9.e+]+)$", server.metrics(), re.MULTILINE
        )
        if sum(map(float, found)) >= tokens:
            return
        assert time.monotonic() < ends_at, f"only {found} tokens were stored\n{server.log()}"
        time.sleep(0.1)
