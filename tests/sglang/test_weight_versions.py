"""Weights that are exchanged while SGLang runs: pages of one version never answer for another."""

from __future__ import annotations

import logging
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
def test_a_server_whose_weights_are_updated_never_loads_pages_of_the_old_ones(tmp_path: Path) -> None:
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
        with SGLangServer("server", models["1"], tmp_path, extra_config) as server:

            def ask(from_storage: int) -> dict[str, Any]:
                server.flush()
                answer = server.generate(PROMPT, NEW_TOKENS)
                details = answer["meta_info"].get("cached_tokens_details") or {}
                assert details.get("storage", 0) == from_storage, server.log()
                return answer

            old = ask(from_storage=0)
            wait_for_backup(server, WHOLE_PAGES_TOKENS)
            check_same_answer(ask(from_storage=WHOLE_PAGES_TOKENS), old)

            server.update_weights(models["2"], "2")
            new = ask(from_storage=0)
            assert new["output_ids"] != old["output_ids"]
            wait_for_backup(server, 2 * WHOLE_PAGES_TOKENS)
            check_same_answer(ask(from_storage=WHOLE_PAGES_TOKENS), new)

            server.update_weights(models["1"], "default")
            check_same_answer(ask(from_storage=WHOLE_PAGES_TOKENS), old)
