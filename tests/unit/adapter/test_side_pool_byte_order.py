"""Side pools in the canonical byte order: those of keys and values, and of latent rows, follow it; states do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hicache_adapter import AdapterConfig
from hicache_adapter.model_facts import ModelFacts
from hicache_adapter.rank_coordinates import RankCoordinates
from hicache_adapter.side_pool_kinds import PoolShare, side_pool_share


class MHATokenToKVPoolHost(SimpleNamespace):
    """The attributes of SGLang's pool of keys and values."""


class MLATokenToKVPoolHost(SimpleNamespace):
    """The attributes of SGLang's pool of latent rows."""


COMMON = {"dtype": "torch.bfloat16", "page_size": 64, "layer_num": 24}
HEADS = {"head_num": 8, "head_dim": 128, "v_head_dim": 128}
ROWS = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "kv_cache_dim": 576}


def share(pool: Any, **options: Any) -> PoolShare:
    rank = RankCoordinates(model_name="acme/model", tp_lcm_size=4)
    config = AdapterConfig.from_extra_config({"masters": "a:1"} | options, {})
    return side_pool_share("swa", rank, pool, config, ModelFacts())


def window_pool(layout: str) -> Any:
    return MHATokenToKVPoolHost(layout=layout, **COMMON, **HEADS)


def latent_pool(layout: str) -> Any:
    return MLATokenToKVPoolHost(layout=layout, **COMMON, **ROWS)


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct", "page_head"])
def test_windows_of_all_layouts_are_the_same_objects(layout: str) -> None:
    of_layout = share(window_pool(layout), byte_order="canonical")
    assert of_layout == share(window_pool("layer_first"), byte_order="canonical")
    assert [shard.head_group for shard in of_layout.shards] == [0, 1, 2, 3]


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct"])
def test_latent_windows_of_all_layouts_are_the_same_object(layout: str) -> None:
    of_layout = share(latent_pool(layout), byte_order="canonical")
    assert of_layout == share(latent_pool("page_first_direct"), byte_order="canonical")
    assert len(of_layout.shards) == 1


def test_unless_it_is_asked_for_windows_are_stored_as_they_lie() -> None:
    first, direct = (share(window_pool(layout)) for layout in ("page_first", "page_first_direct"))
    assert (first.canonical, first.identity.byte_order) == (False, "page_first")
    assert first.identity != direct.identity
