"""A whole server of two data-parallel groups, each with a host pool and a scheduler of its own: what one has stored, the other one
loads. Two groups of one attention layer's ranks (`--attn-dp-size`), and two replicas of the whole model (`--dp-size`).
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


@pytest.mark.parametrize(
    ("groups", "attention"),
    [
        # Not grouped: a group without work then ends in the rotary embedding, whose form for CPUs takes no empty batch.
        ("attn-dp-size", "latent"),
        ("dp-size", "grouped"),
        pytest.param("dp-size", "latent", marks=pytest.mark.long),
    ],
)
def test_each_group_loads_what_the_other_one_has_stored(tmp_path: Path, groups: str, attention: str) -> None:
    make_model = {"grouped": make_tiny_model, "latent": make_latent_model}[attention]
    model = make_model(tmp_path / "model")
    with (
        running_cluster(tmp_path / "store") as store,
        SGLangServer(
            "server",
            model,
            tmp_path,
            kvstore_config(store.masters, deadline_ms=5000),
            tp_size=2 if groups == "attn-dp-size" else 1,
            settings={groups: 2},
            environment={"SGLANG_CPU_OMP_THREADS_BIND": "0|1", "GLOO_SOCKET_IFNAME": "lo"},
        ) as server,
    ):
        live = LiveServer(server, store)
        prompts = [new_prompt(), new_prompt()]
        cold = [live.ask_and_store(prompt, routed_dp_rank=rank) for rank, prompt in enumerate(prompts)]
        objects = segment_metrics(store.segments["segment"])["object_count"]
        for rank, prompt, expected in zip((1, 0), prompts, cold, strict=True):
            warm = live.ask_anew(prompt, from_storage=WHOLE_PAGES_TOKENS, routed_dp_rank=rank)
            check_equal(warm, expected)
        assert segment_metrics(store.segments["segment"])["object_count"] == objects
        server.kill()
