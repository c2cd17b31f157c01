"""Whole servers in each layout of the host pool that no other test of theirs has, with both of SGLang's ways to copy to the
device, and with both kinds of attention: what is stored answers as what was computed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sglang_harness.live import WHOLE_PAGES_TOKENS, LiveServer, check_equal, new_prompt
from sglang_harness.server import SGLangServer, kvstore_config
from sglang_harness.tiny_latent_model import make_latent_model
from sglang_harness.tiny_model import make_tiny_model

from support.processes import segment_metrics
from support.running_cluster import running_cluster

LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("attention", "layout", "io_backend", "tp_size"),
    [
        ("grouped", "layer_first", "kernel", 1),
        ("grouped", "page_first_direct", "direct", 1),
        ("latent", "page_first", "kernel", 1),
        pytest.param("grouped", "layer_first", "direct", 1, marks=LONG),
        ("latent", "layer_first", "kernel", 1),
        pytest.param("latent", "layer_first", "direct", 1, marks=LONG),
        ("latent", "page_first_direct", "direct", 1),
        pytest.param("latent", "page_first", "kernel", 2, marks=LONG),
    ],
)
def test_a_server_answers_from_stored_pages_as_from_computed_ones(
    tmp_path: Path, attention: str, layout: str, io_backend: str, tp_size: int
) -> None:
    make_model = {"grouped": make_tiny_model, "latent": make_latent_model}[attention]
    model = make_model(tmp_path / "model")
    settings = {"hicache-mem-layout": layout, "hicache-io-backend": io_backend}
    with (
        running_cluster(tmp_path / "store") as store,
        SGLangServer(
            "server",
            model,
            tmp_path,
            kvstore_config(store.masters, deadline_ms=5000),
            tp_size=tp_size,
            settings=settings,
        ) as server,
    ):
        live = LiveServer(server, store)
        prompts = [new_prompt(), new_prompt()]
        cold = [live.ask_and_store(prompt) for prompt in prompts]
        for prompt, expected in zip(prompts, cold, strict=True):
            check_equal(live.ask_anew(prompt, from_storage=WHOLE_PAGES_TOKENS), expected)
        if attention == "latent":
            # All ranks have the same: one of them stores it, and only once. The answers' own pages are stored too.
            pages = sum((len(each["output_ids"]) - 1 + 333) // 16 for each in cold)
            assert segment_metrics(store.segments["segment"])["object_count"] == pages
        server.kill()
