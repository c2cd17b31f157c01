"""What a plan in the canonical order makes of SGLang's own host pools, against numpy; and what it refuses."""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.runtime_context import get_parallel
from sglang_harness.case import Case
from sglang_harness.engine import Engine, new_pools

from hicache_adapter import ConfigError, canonical_plan
from hicache_adapter.canonical_plan import CanonicalPlan
from kvstore_client import Shard

# Where numpy finds layer, K or V, token, head and element in a pool, with slots parted into pages and tokens.
AXES = {
    "layer_first": "klpthe",
    "page_first": "kptlhe",
    "page_first_direct": "kplthe",
    "page_head": "kphtle",
}
LAYOUTS = [("mha", layout) for layout in AXES] + [("mla", layout) for layout in AXES if layout != "page_head"]


def host_pool(case: Case) -> Any:
    """With random content, all of it."""
    with get_parallel().override(tp_rank=0, tp_size=1, attn_tp_rank=0, attn_tp_size=1):
        pool = new_pools(case)[1]
    generator = torch.Generator().manual_seed(case.seed)
    raw = pool.kv_buffer.view(torch.uint8)
    raw.copy_(torch.randint(0, 256, raw.shape, dtype=torch.uint8, generator=generator))
    return pool


def in_canonical_order(pool: Any, page: int, shard: Shard, group_heads: int) -> bytes:
    axes = AXES[pool.layout]
    latent = hasattr(pool, "kv_lora_rank")
    bits = (pool.kv_buffer[None] if latent else pool.kv_buffer).view(torch.int16).numpy()
    if pool.layout in ("layer_first", "page_first"):  # their slots are tokens of one page after the other
        at = axes.index("p")
        bits = bits.reshape(*bits.shape[:at], -1, pool.page_size, *bits.shape[at + 1 :])
    ordered = bits.transpose([axes.index(axis) for axis in "plkthe"])[page]
    layers = slice(shard.layer_start, shard.layer_start + shard.layer_count)
    heads = slice(shard.head_group * group_heads, (shard.head_group + 1) * group_heads)
    return np.ascontiguousarray(ordered[layers, :, :, heads]).tobytes()


@st.composite
def geometries(draw: st.DrawFn) -> tuple[Case, int, int]:
    """A pool, the head groups and the layers of an object."""
    kind, layout = draw(st.sampled_from(LAYOUTS))
    groups = 1 if kind == "mla" else draw(st.sampled_from([1, 2, 4]))
    heads, layers = groups * draw(st.integers(1, 2)), draw(st.integers(1, 5))
    case = Case(
        kind=kind,
        layout=layout,
        layers=layers,
        heads=heads,
        head_dim=draw(st.sampled_from([2, 8])),
        page_size=draw(st.sampled_from([1, 4, 16])),
        seed=draw(st.integers(0, 1000)),
        pages=4,
    )
    return case, groups, draw(st.integers(1, layers))


@settings(max_examples=40, deadline=None)
@given(geometries())
def test_objects_are_what_numpy_makes_of_the_pool(geometry: tuple[Case, int, int]) -> None:
    case, groups, chunk = geometry
    pool = host_pool(case)
    shards = [
        Shard(start, min(chunk, case.layers - start), group, groups)
        for group in range(groups)
        for start in range(0, case.layers, chunk)
    ]
    plan = CanonicalPlan(pool, shards)
    assert plan.affine_plan is not None
    pages = pool.size // case.page_size
    for page in {0, 1, pages - 1}:
        for shard, pieces, size_bytes in zip(shards, plan.affine_plan, plan.object_bytes, strict=True):
            gathered = b"".join(ctypes.string_at(base + stride * page, size) for base, stride, size in pieces)
            assert len(gathered) == size_bytes
            assert gathered == in_canonical_order(pool, page, shard, case.heads // groups)


@pytest.mark.parametrize(("kind", "layout"), LAYOUTS)
def test_addresses_that_are_not_those_of_the_tensors_are_refused(
    kind: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = host_pool(Case(kind=kind, layout=layout))
    asked = pool.get_page_buffer_meta

    def one_page_further(indices: Any) -> Any:
        return asked(indices + pool.page_size if int(indices[0]) == pool.page_size else indices)

    monkeypatch.setattr(pool, "get_page_buffer_meta", one_page_further)
    with pytest.raises(ConfigError, match=r"^byte_order: the addresses .*use byte_order native"):
        CanonicalPlan(pool, [Shard(0, 4)])


@pytest.mark.parametrize(("kind", "layout"), LAYOUTS)
def test_flat_pages_in_another_order_are_refused(
    kind: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = host_pool(Case(kind=kind, layout=layout))
    asked = pool.get_data_page

    def tokens_and_layers_changed_round(index: int, flat: bool = True) -> Any:
        page = asked(index, flat=False)
        long = [axis for axis, size in enumerate(page.shape) if size > 2][:2]
        return page.transpose(*long)

    monkeypatch.setattr(pool, "get_data_page", tokens_and_layers_changed_round)
    with pytest.raises(ConfigError, match=r"^byte_order: the flat pages .*use byte_order native"):
        CanonicalPlan(pool, [Shard(0, 4)])


def test_a_page_of_too_many_pieces_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical_plan, "PIECES_MAX", 500)
    with pytest.raises(ConfigError, match=r"^byte_order: .*512 pieces, the limit for canonical is 500"):
        CanonicalPlan(host_pool(Case(layout="page_head")), [Shard(0, 4)])
    CanonicalPlan(host_pool(Case(layout="page_first")), [Shard(0, 4)])


def test_a_stage_that_ends_within_an_object_says_so_once_and_leaves_the_store_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = {"masters": "127.0.0.1:1", "byte_order": "canonical", "layers_per_object": 3}
    case = Case(pp_rank=0, pp_size=2, options=options, pages=2)
    with caplog.at_level(logging.ERROR, logger="hicache_adapter"), Engine(case) as engine:
        slots = engine.host_pool.alloc(2 * case.page_size)
        assert engine.backup(slots, case.tokens)[1] == 0
        assert engine.prefetch(case.tokens).hit_tokens == 0
    (line,) = [record.getMessage() for record in caplog.records if record.name == "hicache_adapter"]
    assert "layer 4, where stages meet, is no multiple of layers_per_object 3" in line


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tp_lcm_size": 8}, r"^tp_lcm_size: .*at most 4"),
        ({"tp_lcm_size": 3}, r"^tp_lcm_size: "),
        ({"options": {"layers_per_object": 2}}, r"^layers_per_object: needs byte_order canonical"),
    ],
)
def test_settings_that_fit_no_rank_stop_the_engine(changes: dict[str, Any], said: str) -> None:
    options = {"masters": "127.0.0.1:1", "byte_order": "canonical"}
    options = changes.pop("options", options) | {"masters": "127.0.0.1:1"}
    with pytest.raises((ConfigError, ValueError), match=said), Engine(Case(options=options, **changes)):
        pass
