"""Whole SGLang servers of hybrid models: a fresh one answers from the KV pages and the side pools of another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sglang_harness.server import SGLangServer
from sglang_harness.tiny_hybrid_models import make_short_convolution_model, make_sliding_window_model
from test_server import (
    NEW_TOKENS,
    PROMPT,
    WHOLE_PAGES_TOKENS,
    check_loaded,
    check_same_answer,
    logged,
    wait_for_backup,
)

from support.processes import Cluster
from support.running_cluster import running_cluster

# A prompt that is cut in two is added up in another order than one in one piece, so the answers agree to float32 rounding.
TOLERANCE = 1e-3


def extra_config(store: Cluster) -> dict[str, Any]:
    return {
        "backend_name": "kvstore",
        "module_path": "hicache_adapter",
        "class_name": "KVStoreHiCache",
        "interface_v1": 1,
        "prefetch_threshold": 16,
        "masters": store.masters,
        "deadline_ms": 5000,  # a busy machine may not cost a hit
    }


@pytest.mark.timeout(1200)
def test_a_fresh_server_of_a_sliding_window_model_answers_from_stored_windows(tmp_path: Path) -> None:
    model = make_sliding_window_model(tmp_path / "model")
    with running_cluster(tmp_path / "store") as store:
        with SGLangServer("first", model, tmp_path, extra_config(store)) as first:
            cold = first.generate(PROMPT, NEW_TOKENS)
            wait_for_backup(first, WHOLE_PAGES_TOKENS)
        assert cold["meta_info"]["cached_tokens"] == 0
        with SGLangServer("second", model, tmp_path, extra_config(store)) as second:
            warm = second.generate(PROMPT, NEW_TOKENS)
        check_loaded(warm, second)
        check_same_answer(warm, cold)
        for server in (first, second):
            assert '"pool":"swa"' in server.log_text(), server.log()
        for pattern in (r"identity ([0-9a-f]{12})", r"namespace ([0-9a-f]{16})"):
            assert len(logged(first, pattern)) == 2  # KV and the window
            assert logged(first, pattern) == logged(second, pattern)


@pytest.mark.timeout(1200)
def test_a_fresh_server_of_a_recurrent_model_continues_from_a_stored_state(tmp_path: Path) -> None:
    model = make_short_convolution_model(tmp_path / "model")
    settings = {"page-size": 1, "max-mamba-cache-size": 64, "max-running-requests": 8}
    longer = PROMPT + [3 + (number * 13) % 280 for number in range(67)]
    with running_cluster(tmp_path / "store") as store:
        with SGLangServer("first", model, tmp_path, extra_config(store), settings=settings) as first:
            cold = first.generate(longer, NEW_TOKENS)
            wait_for_backup(first, len(longer))
            first.flush()
            # The KV pages of PROMPT are stored now, but no state behind them: nothing of it can be restored.
            shorter = first.generate(PROMPT, NEW_TOKENS)
            wait_for_backup(first, len(longer) + len(PROMPT))
        assert cold["meta_info"]["cached_tokens"] == shorter["meta_info"]["cached_tokens"] == 0
        with SGLangServer("second", model, tmp_path, extra_config(store), settings=settings) as second:
            warm = second.generate(longer, NEW_TOKENS)
        details = warm["meta_info"]["cached_tokens_details"]
        assert details["storage"] == len(PROMPT), (
            second.log()
        )  # with the state that the shorter prompt has left
        assert details["storage_backend"] == "KVStoreHiCache"
        assert '"pool":"mamba"' in second.log_text(), second.log()
        assert warm["output_ids"] == cold["output_ids"]
        assert logprobs(warm) == pytest.approx(logprobs(cold), abs=TOLERANCE)


def logprobs(answer: dict[str, Any]) -> list[float]:
    return [token[0] for token in answer["meta_info"]["output_token_logprobs"]]
