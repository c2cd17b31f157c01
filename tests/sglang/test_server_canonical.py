"""Whole SGLang servers of different host layout, TP and PP size in the canonical byte order: each answers from the pages
that another one has written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sglang_harness.server import SGLangServer
from sglang_harness.tiny_model import make_tiny_model

from kvstore_client import Client, Identity, Shard
from support.processes import Cluster
from support.running_cluster import running_cluster
from support.waiting import wait_until

HEADS, LAYERS, HEAD_DIM, PAGE_TOKENS = 4, 2, 16, 16
NEW_TOKENS = 24
PROMPT = [3 + (i * i * 31 + i * 7) % 280 for i in range(333)]
LOADED_TOKENS = 320  # the whole pages of the prompt
STORED_PAGES = (333 + NEW_TOKENS - 1) // PAGE_TOKENS

# Other sizes add up in another order: what they compute agrees to float32 rounding, and the best token is further from
# the second best than that.
TOLERANCE, MARGIN = 1e-4, 1e-2

IDENTITY = Identity(
    model="acme/tiny",
    kv_dtype="float32",
    store_dtype="float32",
    pool_class="MHATokenToKVPoolHost",
    byte_order="layer_first",
    page_size=PAGE_TOKENS,
    head_count=HEADS,
    head_dim=HEAD_DIM,
    v_head_dim=HEAD_DIM,
)

Answer = dict[str, Any]


class Fleet:
    """One store, one model, and servers on both, one after the other."""

    def __init__(self, directory: Path, store: Cluster, client: Client) -> None:
        self._directory = directory
        self._model = make_tiny_model(directory / "model", kv_heads=HEADS)
        self._store = store
        self._client = client

    def answer(
        self, name: str, layout: str, *, loaded: int, sizes: dict[str, Any] | None = None, **options: Any
    ) -> Answer:
        """Of a fresh server, which takes exactly so many tokens of the prompt from the store; in the end everything that it
        has computed is stored.
        """
        extra_config = {
            "backend_name": "kvstore",
            "module_path": "hicache_adapter",
            "class_name": "KVStoreHiCache",
            "interface_v1": 1,
            "prefetch_threshold": PAGE_TOKENS,
            "masters": self._store.masters,
            "deadline_ms": 5000,
        } | options
        sizes = dict(sizes or {})
        tp_size = sizes.pop("tp-size", 1)
        settings = {"hicache-mem-layout": layout, **sizes}
        with SGLangServer(
            name, self._model, self._directory, extra_config, tp_size=tp_size, settings=settings
        ) as server:
            answer = server.generate(PROMPT, NEW_TOKENS, top_logprobs=2)
            assert answer["meta_info"]["cached_tokens"] == loaded, server.log()
            if loaded:
                assert answer["meta_info"]["cached_tokens_details"]["storage"] == loaded, server.log()
            else:
                self.wait_until_stored(answer, options)
            server.kill()
        return answer

    def wait_until_stored(self, answer: Answer, options: dict[str, Any]) -> None:
        """All objects of all pages."""
        pages = self._client.namespace(IDENTITY).pages(shards=shards_of(options))
        keys = page_keys(PROMPT + answer["output_ids"])[:STORED_PAGES]
        wait_until(lambda: pages.prefix_exists(keys) == STORED_PAGES, "each page is stored", 60.0)


def shards_of(options: dict[str, Any]) -> list[Shard]:
    """The objects of a page, all of them."""
    groups = options.get("tp_lcm_size", 1)
    layers = options.get("layers_per_object", 0) or LAYERS
    return [
        Shard(start, layers, group, groups) for group in range(groups) for start in range(0, LAYERS, layers)
    ]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with running_cluster(tmp_path / "store") as store, Client(store.masters, deadline_ms=5000) as client:
        yield Fleet(tmp_path, store, client)


@pytest.mark.timeout(1500)
def test_a_decode_server_with_layer_first_answers_from_the_pages_of_a_prefill_server_with_page_first(
    fleet: Fleet,
) -> None:
    cold = fleet.answer("page_first", "page_first", loaded=0, byte_order="canonical")
    # Its pages lie in that order anyway: it need not be told.
    warm = fleet.answer("layer_first", "layer_first", loaded=LOADED_TOKENS)
    check_same_answer(warm, cold)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_server_of_tp_2_with_page_head_answers_from_the_pages_of_one_of_tp_1_with_page_first(
    fleet: Fleet,
) -> None:
    options = {"byte_order": "canonical", "tp_lcm_size": HEADS, "layers_per_object": 1}
    cold = fleet.answer("page_first", "page_first", loaded=0, **options)
    sizes = {"tp-size": 2}
    check_same_answer(
        fleet.answer("page_head", "page_head", loaded=LOADED_TOKENS, sizes=sizes, **options), cold
    )


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_server_without_pipeline_answers_from_the_pages_of_one_of_two_stages(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"byte_order": "canonical", "layers_per_object": 1}
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    cold = fleet.answer("pp2", "page_first", loaded=0, sizes={"pp-size": 2}, **options)
    monkeypatch.delenv("SGLANG_CPU_OMP_THREADS_BIND")
    check_same_answer(fleet.answer("pp1", "layer_first", loaded=LOADED_TOKENS, **options), cold)


def check_same_answer(answer: Answer, expected: Answer) -> None:
    best_two = expected["meta_info"]["output_top_logprobs"]
    assert min(float(first[0] - second[0]) for first, second in best_two) > MARGIN
    assert answer["output_ids"] == expected["output_ids"]
    ours, theirs = (
        [token[0] for token in each["meta_info"]["output_token_logprobs"]] for each in (answer, expected)
    )
    assert max(abs(our - their) for our, their in zip(ours, theirs, strict=True)) < TOLERANCE


def page_keys(tokens: list[int]) -> list[str]:
    """SGLang's own hashes of the whole pages."""
    from sglang.srt.mem_cache.utils import get_storage_hash_str

    whole = len(tokens) // PAGE_TOKENS * PAGE_TOKENS
    keys: list[str] = get_storage_hash_str(tokens[:whole], None, page_size=PAGE_TOKENS)
    return keys
