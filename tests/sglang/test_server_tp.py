"""Whole SGLang servers of different TP sizes on one namespace: each answers from the pages that the other has
written.

Layout page_head with tp_lcm_size 4, on a model with 4 KV heads: a page is four objects, one for each head. The
TP 1 server holds all four of a page, rank r of the TP 2 server heads 2r and 2r + 1.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang_harness.server import SGLangServer
from sglang_harness.tiny_model import make_tiny_model

from kvstore_client import Client, Identity, Shard
from support.processes import Cluster, segment_metrics
from support.running_cluster import running_cluster
from support.waiting import wait_until

HEADS = TP_LCM_SIZE = 4
PAGE_TOKENS, LAYERS, HEAD_DIM = 16, 2, 16
NEW_TOKENS = 24
PROMPTS = [[3 + (i * i * step + i * 7) % 280 for i in range(333)] for step in (31, 17)]
LOADED_TOKENS = 320  # the whole pages of a prompt
STORED_PAGES = (333 + NEW_TOKENS - 1) // PAGE_TOKENS  # the last token has no keys and values yet

# TP 2 adds up in another order than TP 1, so their pages and answers agree to float32 rounding (some 4e-6), not
# bit by bit.
TOLERANCE = 1e-4
# How far apart things are that differ: a greedy token from the second best, a head from its neighbour.
MARGIN = 1e-2

REVISION = "1"  # in place of a fingerprint of the weights
SHARDS = [Shard(layer_count=LAYERS, head_group=head, head_groups=HEADS) for head in range(HEADS)]
IDENTITY = Identity(
    model="acme/tiny",
    kv_dtype="float32",
    store_dtype="float32",
    pool_class="MHATokenToKVPoolHost",
    byte_order="page_head",
    page_size=PAGE_TOKENS,
    head_count=HEADS,
    head_dim=HEAD_DIM,
    v_head_dim=HEAD_DIM,
    revision=REVISION,
)

Answer = dict[str, Any]


class Fleet:
    """One store, one model, and servers of any TP size on both, one after the other."""

    def __init__(self, directory: Path, store: Cluster, client: Client) -> None:
        self._directory = directory
        self._model = make_tiny_model(directory / "model", kv_heads=HEADS)
        self._store = store
        self._pages = client.namespace(IDENTITY).pages(shards=SHARDS)

    @contextmanager
    def server(self, name: str, tp_size: int) -> Iterator[SGLangServer]:
        """A fresh one: it has no pages but those in the store. In the end it is killed, which takes less time
        than asking it to stop, and costs the store nothing.
        """
        extra_config = {
            "backend_name": "kvstore",
            "module_path": "hicache_adapter",
            "class_name": "KVStoreHiCache",
            "interface_v1": 1,
            "prefetch_threshold": PAGE_TOKENS,
            "tp_lcm_size": TP_LCM_SIZE,
            "revision": REVISION,
            "masters": self._store.masters,
            "deadline_ms": 5000,
        }
        settings = {"hicache-mem-layout": "page_head", "hicache-io-backend": "kernel"}
        with SGLangServer(
            name, self._model, self._directory, extra_config, tp_size=tp_size, settings=settings
        ) as server:
            yield server
            server.kill()

    def object_count(self) -> int:
        """All objects in the segment."""
        return int(segment_metrics(self._store.segments["segment"])["object_count"])

    def stored(self, prompt: list[int], answer: Answer) -> torch.Tensor:
        """The pages of prompt and answer, once all of them are stored, as the test's own client reads them:
        [page, head, K or V, token, layer, dim].
        """
        keys = page_keys(prompt + answer["output_ids"])[:STORED_PAGES]
        wait_until(
            lambda: self._pages.prefix_exists(keys) == STORED_PAGES, "each head of each page is stored", 60.0
        )
        objects = [content for content in self._pages.batch_get(keys) if content is not None]
        values = torch.frombuffer(bytearray(b"".join(objects)), dtype=torch.float32)
        return values.view(STORED_PAGES, HEADS, 2, PAGE_TOKENS, LAYERS, HEAD_DIM)

    def store(self, prompt: list[int], content: torch.Tensor) -> None:
        """Puts pages of the prompt, as the test's own client."""
        keys = page_keys(prompt)
        objects = [
            content[page, head].contiguous().numpy().tobytes()
            for page in range(len(keys))
            for head in range(HEADS)
        ]
        assert all(self._pages.batch_put(keys, objects))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with running_cluster(tmp_path / "store") as store, Client(store.masters, deadline_ms=5000) as client:
        yield Fleet(tmp_path, store, client)


@pytest.mark.timeout(1500)
def test_servers_of_tp_1_and_tp_2_answer_from_each_others_pages(fleet: Fleet) -> None:
    with fleet.server("tp1", tp_size=1) as server:
        cold_tp1 = [ask(server, prompt, loaded=0) for prompt in PROMPTS]
        by_tp1 = [fleet.stored(*both) for both in zip(PROMPTS, cold_tp1, strict=True)]
        check_announced(server, ranks=1)
    assert fleet.object_count() == len(PROMPTS) * STORED_PAGES * TP_LCM_SIZE

    with fleet.server("tp2", tp_size=2) as server:
        warm_tp2 = ask(server, PROMPTS[0], loaded=LOADED_TOKENS)
        server.clear_storage()
        server.flush()
        cold_tp2 = [ask(server, prompt, loaded=0) for prompt in PROMPTS]
        by_tp2 = [fleet.stored(*both) for both in zip(PROMPTS, cold_tp2, strict=True)]
        check_announced(server, ranks=2)

    with fleet.server("tp1-again", tp_size=1) as server:
        warm_tp1 = ask(server, PROMPTS[1], loaded=LOADED_TOKENS)
        # Then the first prompt, each head in the place of another one: had the right pages been put together
        # like that, the answers would tell.
        server.clear_storage()
        server.flush()
        fleet.store(PROMPTS[0], by_tp2[0].roll(1, dims=1))
        misled_tp1 = ask(server, PROMPTS[0], loaded=LOADED_TOKENS)

    check_same_answer(warm_tp2, cold_tp2[0])  # pages of TP 1, as if TP 2 had computed them itself
    check_same_answer(warm_tp2, cold_tp1[0])
    check_same_answer(warm_tp1, cold_tp1[1])  # and the other way round
    check_same_answer(warm_tp1, cold_tp2[1])
    assert difference(misled_tp1, cold_tp1[0]) > MARGIN

    for one, other in zip(by_tp1, by_tp2, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)
        for moved in (one.roll(1, dims=1), one.flip(2), one.roll(1, dims=3), one.flip(4)):
            assert (
                moved - other
            ).abs().mean() > MARGIN  # no head, K or V, token or layer is like its neighbour


def ask(server: SGLangServer, prompt: list[int], loaded: int) -> Answer:
    """The answer to the prompt, of which exactly so many tokens must come from the store."""
    answer = server.generate(prompt, NEW_TOKENS, top_logprobs=2)
    details = answer["meta_info"]["cached_tokens_details"]
    assert answer["meta_info"]["cached_tokens"] == loaded, server.log()
    if loaded:
        assert details["storage"] == loaded, server.log()
        assert details["storage_backend"] == "KVStoreHiCache"
    return answer


def check_announced(server: SGLangServer, ranks: int) -> None:
    """Each rank has logged this identity, its own head groups, and a connection."""
    log, digest = server.log_text(), hashlib.sha256(IDENTITY.canonical()).hexdigest()[:12]
    assert len(re.findall(rf"kvstore: connected; identity {digest} ", log)) == ranks, server.log()
    for rank in range(ranks):
        own = SHARDS[rank * HEADS // ranks : (rank + 1) * HEADS // ranks]
        line = rf"kvstore: sglang tp {rank}/{ranks} .* identity {digest} .*; shards (.*?); masters"
        assert re.findall(line, log) == [" ".join(str(tuple(shard)) for shard in own)]


def check_same_answer(answer: Answer, expected: Answer) -> None:
    assert (
        margin(expected) > MARGIN
    )  # else a rounding error could change a token, and the test would be to blame
    assert answer["output_ids"] == expected["output_ids"]
    assert difference(answer, expected) < TOLERANCE


def difference(answer: Answer, expected: Answer) -> float:
    """The largest one between the log-probabilities of tokens at the same place."""
    ours, theirs = (
        [token[0] for token in each["meta_info"]["output_token_logprobs"]] for each in (answer, expected)
    )
    return max(abs(our - their) for our, their in zip(ours, theirs, strict=True))


def margin(answer: Answer) -> float:
    """The least distance between the best token and the second best, in log-probability."""
    best_two = answer["meta_info"]["output_top_logprobs"]
    assert len(best_two) == NEW_TOKENS
    return min(float(first[0] - second[0]) for first, second in best_two)


def page_keys(tokens: list[int]) -> list[str]:
    """SGLang's own hashes of the whole pages."""
    from sglang.srt.mem_cache.utils import get_storage_hash_str

    whole = len(tokens) // PAGE_TOKENS * PAGE_TOKENS
    keys: list[str] = get_storage_hash_str(tokens[:whole], None, page_size=PAGE_TOKENS)
    return keys
