"""Whole servers of different host layout, TP size and PP size on one store in the canonical byte order: each answers from the
pages that the other one has written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sglang_harness.live import (
    NEW_TOKENS,
    PAGE_TOKENS,
    PROMPT_TOKENS,
    WHOLE_PAGES_TOKENS,
    Answer,
    LiveServer,
    check_close,
    check_equal,
    new_prompt,
)
from sglang_harness.server import SGLangServer, kvstore_config
from sglang_harness.tiny_model import make_tiny_model
from sglang_harness.zygote import environment_of

from support.processes import Cluster, segment_metrics
from support.running_cluster import running_cluster
from support.waiting import wait_until

KV_HEADS, LAYERS = 4, 2
CANONICAL: dict[str, Any] = {"byte_order": "canonical"}
STORED_PAGES = (PROMPT_TOKENS + NEW_TOKENS - 1) // PAGE_TOKENS  # the last token has no keys and values yet


@dataclass(frozen=True)
class Instance:
    """One server of the fleet."""

    layout: str
    tp_size: int = 1
    pp_size: int = 1
    options: dict[str, Any] = field(default_factory=CANONICAL.copy)
    """Of the extra config."""

    def server(self, model: Path, store: Cluster, directory: Path) -> AbstractContextManager[SGLangServer]:
        settings: dict[str, Any] = {"hicache-mem-layout": self.layout}
        if self.pp_size > 1:
            settings["pp-size"] = self.pp_size
        return SGLangServer(
            f"{self.layout}-tp{self.tp_size}-pp{self.pp_size}",
            model,
            directory,
            kvstore_config(store.masters, deadline_ms=5000, **self.options),
            tp_size=self.tp_size,
            settings=settings,
            environment=environment_of(self.tp_size * self.pp_size, {}),
        )


BY_LAYER = CANONICAL | {"layers_per_object": 1}
BY_HEAD_AND_LAYER = BY_LAYER | {"tp_lcm_size": KV_HEADS}


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("one", "other", "objects_a_page", "check"),
    [
        # A decode server, whose layout SGLang chooses, has that order anyway and need not be told.
        pytest.param(
            Instance("page_first"), Instance("layer_first", options={}), 1, check_equal, id="layout"
        ),
        pytest.param(
            Instance("page_first", options=BY_HEAD_AND_LAYER),
            Instance("page_head", tp_size=2, options=BY_HEAD_AND_LAYER),
            KV_HEADS * LAYERS,
            check_close,
            id="tp",
            marks=pytest.mark.long,
        ),
        pytest.param(
            Instance("page_first", pp_size=2, options=BY_LAYER),
            Instance("layer_first", options=BY_LAYER),
            LAYERS,
            check_equal,
            id="pp",
            marks=pytest.mark.long,
        ),
    ],
)
def test_servers_of_different_layout_and_size_answer_from_each_others_pages(
    tmp_path: Path,
    one: Instance,
    other: Instance,
    objects_a_page: int,
    check: Callable[[Answer, Answer], None],
) -> None:
    model = make_tiny_model(tmp_path / "model", kv_heads=KV_HEADS)
    with (
        running_cluster(tmp_path / "store") as store,
        one.server(model, store, tmp_path) as first,
        other.server(model, store, tmp_path) as second,
    ):
        servers = [LiveServer(server, store) for server in (first, second)]
        for number, (writer, reader) in enumerate((servers, servers[::-1])):
            prompt = new_prompt(number=100 + number)
            cold = writer.ask_anew(prompt, from_storage=0, top_logprobs=2)
            # Every object of every page; that is also what the reader would have stored, and finds.
            wait_for_objects(store, (number + 1) * STORED_PAGES * objects_a_page)
            warm = reader.ask_anew(prompt, from_storage=WHOLE_PAGES_TOKENS, top_logprobs=2)
            assert warm["output_ids"] == cold["output_ids"]
            check(warm, cold)
        assert len(set(connected_as(one, first) + connected_as(other, second))) == 1
        for server in (first, second):
            server.kill()


def connected_as(instance: Instance, server: SGLangServer) -> list[str]:
    """The identity that each rank says that its pages have."""
    identities = re.findall(r"kvstore: connected; identity ([0-9a-f]+) ", server.log_text())
    assert len(identities) == instance.tp_size * instance.pp_size, server.log()
    return identities


def wait_for_objects(store: Cluster, count: int) -> None:
    """Until the store has exactly so many."""
    wait_until(
        lambda: segment_metrics(store.segments["segment"])["object_count"] == count,
        f"{count} objects are stored",
        60.0,
    )
