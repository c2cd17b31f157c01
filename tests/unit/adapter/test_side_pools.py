"""From a side pool to its identity and shards: what must differ differs, what can't be told is refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hicache_adapter import AdapterConfig, ConfigError
from hicache_adapter.model_facts import ModelFacts
from hicache_adapter.page_identity import UnusableRankError, page_identity
from hicache_adapter.rank_coordinates import RankCoordinates
from hicache_adapter.side_pool_kinds import PoolShare, side_pool_share
from kvstore_client import Shard


class MHATokenToKVPoolHost(SimpleNamespace):
    """The attributes of SGLang's pool of keys and values."""


class AsymmetricMHATokenToKVPoolHost(MHATokenToKVPoolHost):
    """Another class of the same kind."""


class MLATokenToKVPoolHost(SimpleNamespace):
    """The attributes of SGLang's pool of latent rows."""


class MambaPoolHost(SimpleNamespace):
    """The attributes of SGLang's pool of recurrent states."""


def window_pool(pool_class: type = MHATokenToKVPoolHost, **changes: Any) -> Any:
    fields = {"dtype": "torch.bfloat16", "layout": "page_first", "page_size": 64, "layer_num": 24}
    fields |= {"start_layer": 0, "head_num": 8, "head_dim": 128, "v_head_dim": 128}
    return pool_class(**(fields | changes))


def latent_pool(**changes: Any) -> Any:
    fields = {"dtype": "torch.bfloat16", "layout": "page_first", "page_size": 64, "layer_num": 24}
    fields |= {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "kv_cache_dim": 576}
    return MLATokenToKVPoolHost(**(fields | changes))


def state_pool(device: str = "cuda", **changes: Any) -> Any:
    fields = {
        "layout": "page_first",
        "page_size": 1,
        "num_mamba_layers": 36,
        "conv_dtype": "torch.bfloat16",
        "temporal_dtype": "torch.float32",
        "conv_state_shapes": [(8192, 3)],
        "temporal_state_shape": (32, 128, 128),
        "temporal_state_elem_size": 32 * 128 * 128,
        "buffer_info": SimpleNamespace(temporal=SimpleNamespace(device=SimpleNamespace(type=device))),
    }
    return MambaPoolHost(**(fields | changes))


def sglang_config(**changes: Any) -> RankCoordinates:
    fields = {"tp_rank": 0, "tp_size": 1, "is_mla_model": False, "model_name": "acme/model"}
    return RankCoordinates.of(SimpleNamespace(**(fields | changes)))


DRAFT = ModelFacts(draft_model="acme/draft@1")


def share(
    name: str, pool: Any, config: Any = None, facts: ModelFacts | None = None, **options: Any
) -> PoolShare:
    adapter = AdapterConfig.from_extra_config({"masters": "a:1"} | options, {})
    return side_pool_share(name, config or sglang_config(), pool, adapter, facts or ModelFacts())


VARIANTS = {
    "window": lambda: share("swa", window_pool()),
    "window of another model": lambda: share("swa", window_pool(), sglang_config(model_name="acme/other")),
    "window of another revision": lambda: share("swa", window_pool(), revision="2"),
    "window of another fleet": lambda: share("swa", window_pool(), tag="blue"),
    "window heads": lambda: share("swa", window_pool(head_num=4)),
    "window width": lambda: share("swa", window_pool(head_dim=64)),
    "window value width": lambda: share("swa", window_pool(v_head_dim=64)),
    "window dtype": lambda: share("swa", window_pool(dtype="torch.float16")),
    "window layout": lambda: share("swa", window_pool(layout="page_head")),
    "window page size": lambda: share("swa", window_pool(page_size=32)),
    "window pool class": lambda: share("swa", window_pool(AsymmetricMHATokenToKVPoolHost)),
    "window with packed draft layers": lambda: share("swa", window_pool(target_layer_num=23)),
    "latent window": lambda: share("swa", latent_pool()),
    "draft": lambda: share("draft", window_pool(), facts=DRAFT),
    "draft window": lambda: share("draft_swa", window_pool(), facts=DRAFT),
    "another draft": lambda: share("draft", window_pool(), facts=ModelFacts(draft_model="acme/draft@2")),
    "states": lambda: share("mamba", state_pool()),
    "states of another shape, the same size": lambda: share(
        "mamba", state_pool(temporal_state_shape=(128, 32, 128))
    ),
    "states of another convolution": lambda: share("mamba", state_pool(conv_state_shapes=[(3, 8192)])),
    "states without a temporal part": lambda: share("mamba", state_pool(temporal_state_elem_size=0)),
    "state dtype": lambda: share("mamba", state_pool(temporal_dtype="torch.bfloat16")),
    "convolution dtype": lambda: share("mamba", state_pool(conv_dtype="torch.float16")),
    "state layout": lambda: share("mamba", state_pool(layout="page_first_direct")),
    "states of another device": lambda: share("mamba", state_pool("npu")),
    "states with draft layers": lambda: share("mamba", state_pool(mtp_draft_buffer_infos=(1,))),
}


def test_every_difference_that_changes_bytes_is_another_identity() -> None:
    names: dict[bytes, str] = {}
    for name, make in VARIANTS.items():
        encoded = make().identity.canonical()
        assert encoded not in names, f"{name} collides with {names[encoded]}"
        names[encoded] = name


def test_a_side_pool_is_never_taken_for_the_kv_pool_of_the_same_form() -> None:
    config, adapter = sglang_config(), AdapterConfig.from_extra_config({"masters": "a:1"}, {})
    kv = page_identity(config, window_pool(), adapter, ModelFacts(), flat_pages=False)
    side = share("swa", window_pool()).identity
    assert side != kv
    assert b'"pool":"swa"' in side.canonical() and b'"pool"' not in kv.canonical()
    assert "swa" in side.name.split()


def test_layers_are_in_the_shard() -> None:
    assert share("swa", window_pool()).shards == (Shard(layer_count=24),)
    assert share("mamba", state_pool()).shards == (Shard(layer_count=36),)


@pytest.mark.parametrize(
    ("name", "pool", "ranks_apart", "is_mla_model"),
    [
        ("swa", window_pool(), True, False),
        ("mamba", state_pool(), True, False),
        ("mamba", state_pool(), True, True),
        ("swa", latent_pool(), False, False),
        ("swa", latent_pool(), False, True),
    ],
)
def test_what_ranks_share_out_is_theirs_alone_whatever_the_kv_pool_is(
    name: str, pool: Any, ranks_apart: bool, is_mla_model: bool
) -> None:
    ranks = [
        share(name, pool, sglang_config(tp_rank=rank, tp_size=2, is_mla_model=is_mla_model)).shards
        for rank in range(2)
    ]
    assert (ranks[0] != ranks[1]) == ranks_apart


@pytest.mark.parametrize("is_mla_model", [False, True])
def test_windows_in_page_head_are_cut_by_tp_lcm_size_like_kv(is_mla_model: bool) -> None:
    one = share(
        "swa", window_pool(layout="page_head"), sglang_config(tp_lcm_size=4, is_mla_model=is_mla_model)
    )
    two = [
        share(
            "swa",
            window_pool(layout="page_head", head_num=4),
            sglang_config(tp_rank=rank, tp_size=2, tp_lcm_size=4),
        )
        for rank in range(2)
    ]
    assert (one.split, two[0].split) == (4, 2)
    assert one.shards == two[0].shards + two[1].shards
    assert one.identity == two[0].identity == two[1].identity


REFUSED = {
    "unknown name": (lambda: share("indexer", window_pool()), "of that name is not stored"),
    "unknown class": (lambda: share("swa", SimpleNamespace()), "SimpleNamespace"),
    "states under another name": (lambda: share("swa", state_pool()), "MambaPoolHost"),
    "draft of unknown weights": (
        lambda: share("draft", window_pool(), facts=ModelFacts(unknown={"draft_model": "x is far"})),
        "x is far; give --speculative-draft-model-revision",
    ),
    "draft without a name": (lambda: share("draft", window_pool()), "draft model"),
    "heads beside a KV cache that one rank writes": (
        lambda: share("draft", window_pool(), sglang_config(tp_size=2, is_mla_model=True), DRAFT),
        "one rank only.* use tp-size 1",
    ),
    "fp8 of unknown kind": (lambda: share("swa", window_pool(dtype="torch.uint8")), "kv_dtype"),
    "quantized states": (lambda: share("mamba", state_pool(temporal_dtype="torch.int8")), "int8"),
    "side states": (lambda: share("mamba", state_pool(slot_state_device_tensors=[1])), "beside its slots"),
    "heads that don't come out even": (
        lambda: share("swa", window_pool(layout="page_head", head_num=2), sglang_config(tp_lcm_size=4)),
        "at most 2",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_can_not_be_identified_is_refused_with_the_reason(what: str) -> None:
    make, reason = REFUSED[what]
    with pytest.raises((ConfigError, UnusableRankError), match=reason):
        make()


def test_a_drafts_own_pool_has_the_drafts_own_kind_of_fp8() -> None:
    facts = ModelFacts(draft_model="d", kv_cache_dtype="fp8_e4m3", draft_kv_cache_dtype="fp8_e5m2")
    pool = window_pool(dtype="torch.uint8")
    assert share("draft", pool, facts=facts).identity.kv_dtype == "fp8_e5m2"
    assert share("swa", pool, facts=facts).identity.kv_dtype == "fp8_e4m3"
    assert share("draft", pool, facts=replace(facts, draft_kv_cache_dtype="")).identity.kv_dtype == "fp8_e4m3"
