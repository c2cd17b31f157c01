"""From a rank and its host pool to the objects of a page: nobody has another's, and who has the same names them alike."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hicache_adapter import AdapterConfig, ConfigError
from hicache_adapter.page_identity import UnusableRankError
from hicache_adapter.rank_coordinates import RankCoordinates
from hicache_adapter.rank_shards import head_split, rank_shards
from kvstore_client import Shard

LAYERS, HEADS = 32, 8


def mha_pool(**changes: Any) -> SimpleNamespace:
    fields = {"layout": "page_first", "layer_num": LAYERS, "start_layer": 0, "head_num": HEADS}
    return SimpleNamespace(**(fields | changes))


def mla_pool(**changes: Any) -> SimpleNamespace:
    return mha_pool(**({"kv_lora_rank": 512, "head_num": 1} | changes))


def sglang_config(**changes: Any) -> RankCoordinates:
    fields = {"tp_rank": 0, "tp_size": 1, "is_mla_model": False, "model_name": "acme/model"}
    return RankCoordinates.of(SimpleNamespace(**(fields | changes)))


def shards_of(rank: RankCoordinates, pool: Any, **options: Any) -> tuple[Shard, ...]:
    return rank_shards(rank, pool, AdapterConfig.from_extra_config({"masters": "a:1"} | options, {}))


def canonical_shards(tp_size: int, pp_size: int, **options: Any) -> list[Shard]:
    """Of all ranks of an engine."""
    layers, heads = LAYERS // pp_size, HEADS // tp_size
    return [
        shard
        for tp in range(tp_size)
        for pp in range(pp_size)
        for shard in shards_of(
            sglang_config(tp_rank=tp, tp_size=tp_size, pp_rank=pp, pp_size=pp_size, tp_lcm_size=4),
            mha_pool(layer_num=layers, start_layer=pp * layers, head_num=heads),
            byte_order="canonical",
            **options,
        )
    ]


@pytest.mark.parametrize("tp_size", [1, 2, 4, 8])
@pytest.mark.parametrize("pp_size", [1, 2])
@pytest.mark.parametrize("cp_size", [1, 2])
@pytest.mark.parametrize("mla", [False, True])
def test_every_rank_has_its_own_shard_unless_the_cache_is_replicated(
    tp_size: int, pp_size: int, cp_size: int, mla: bool
) -> None:
    seen: dict[tuple[Shard, ...], tuple[int, int, int]] = {}
    for tp in range(tp_size):
        for pp in range(pp_size):
            for cp in range(cp_size):
                config = sglang_config(
                    tp_rank=tp,
                    tp_size=tp_size,
                    pp_rank=pp,
                    pp_size=pp_size,
                    attn_cp_rank=cp,
                    attn_cp_size=cp_size,
                    is_mla_model=mla,
                )
                pool = (mla_pool if mla else mha_pool)(layer_num=16, start_layer=16 * pp, head_num=1)
                shards, place = shards_of(config, pool), (0 if mla else tp, pp, cp)
                assert seen.setdefault(shards, place) == place
    assert len(seen) == (1 if mla else tp_size) * pp_size * cp_size


def test_dp_replicas_share() -> None:
    replicas = [shards_of(sglang_config(dp_rank=number), mha_pool()) for number in (0, 3)]
    assert replicas[0] == replicas[1]


@pytest.mark.parametrize(
    ("layout", "byte_order"),
    [("page_head", "native")]
    + [(name, "canonical") for name in ("layer_first", "page_first", "page_first_direct", "page_head")],
)
def test_tp_lcm_size_cuts_a_page_into_the_same_groups_for_every_tp_size(layout: str, byte_order: str) -> None:
    def of(**fields: Any) -> tuple[Shard, ...]:
        pool = mha_pool(layout=layout, head_num=HEADS // fields.get("tp_size", 1))
        return shards_of(sglang_config(tp_lcm_size=8, **fields), pool, byte_order=byte_order)

    whole = set(of())
    assert len(whole) == 8
    for tp_size in (1, 2, 4, 8):
        ranks = [of(tp_rank=rank, tp_size=tp_size) for rank in range(tp_size)]
        assert [shard.head_group for shards in ranks for shard in shards] == list(range(8))
        assert set().union(*ranks) == whole


def test_tp_lcm_size_has_no_effect_on_other_layouts_or_replicated_caches() -> None:
    assert head_split(sglang_config(tp_lcm_size=8), mha_pool(layout="page_first")) == 1
    config = sglang_config(tp_lcm_size=8, is_mla_model=True)
    for byte_order in ("native", "canonical"):
        assert head_split(config, mla_pool(), byte_order=byte_order) == 1
        alone = shards_of(sglang_config(is_mla_model=True), mla_pool(), byte_order=byte_order)
        assert shards_of(config, mla_pool(), byte_order=byte_order) == alone


@pytest.mark.parametrize("byte_order", ["native", "canonical"])
def test_heads_that_do_not_come_out_even_are_refused_once_and_clearly(byte_order: str) -> None:
    pool = mha_pool(layout="page_head", head_num=1)
    with pytest.raises(ConfigError, match=r"^tp_lcm_size: .*at most 2"):
        shards_of(sglang_config(tp_size=2, tp_lcm_size=4), pool, byte_order=byte_order)


@pytest.mark.parametrize(("tp_size", "pp_size"), [(1, 2), (2, 1), (2, 2), (4, 4), (1, 4)])
def test_engines_of_any_tp_and_pp_size_cut_a_page_into_the_same_objects(tp_size: int, pp_size: int) -> None:
    cut = canonical_shards(tp_size, pp_size, layers_per_object=8)
    assert sorted(cut) == sorted(canonical_shards(1, 1, layers_per_object=8))
    assert len(set(cut)) == len(cut) == 4 * 4


def test_objects_are_cut_where_the_model_s_layers_are_counted_from_its_first() -> None:
    rank, pool = sglang_config(pp_rank=1, pp_size=2), mha_pool(start_layer=12, layer_num=20)
    cut = shards_of(rank, pool, byte_order="canonical", layers_per_object=6)
    # The model's last layers are as many as are left.
    assert [(shard.layer_start, shard.layer_count) for shard in cut] == [(12, 6), (18, 6), (24, 6), (30, 2)]


@pytest.mark.parametrize(("pp_rank", "start", "border"), [(0, 0, 12), (1, 12, 12), (1, 15, 27)])
def test_a_stage_that_ends_within_an_object_leaves_the_store_alone(
    pp_rank: int, start: int, border: int
) -> None:
    rank, pool = sglang_config(pp_rank=pp_rank, pp_size=3), mha_pool(start_layer=start, layer_num=12)
    with pytest.raises(UnusableRankError, match=f"layer {border}, .* no multiple of layers_per_object 5"):
        shards_of(rank, pool, byte_order="canonical", layers_per_object=5)


def test_more_objects_than_a_request_takes_are_refused_with_the_remedy() -> None:
    options = {"byte_order": "canonical", "layers_per_object": 1}
    with pytest.raises(ConfigError, match=r"^layers_per_object: .*128 objects, the limit is 64"):
        shards_of(sglang_config(tp_lcm_size=4), mha_pool(), **options)
    with pytest.raises(ConfigError, match=r"^tp_lcm_size: .*128 objects"):
        shards_of(sglang_config(tp_lcm_size=128), mha_pool(head_num=128), byte_order="canonical")


def test_layers_per_object_needs_the_canonical_order() -> None:
    with pytest.raises(ConfigError, match=r"^layers_per_object: needs byte_order canonical"):
        shards_of(sglang_config(), mha_pool(), layers_per_object=8)


def test_a_stage_whose_layers_are_not_consecutive_ones_of_the_model_is_not_cut() -> None:
    rank, every_fourth = (
        sglang_config(pp_rank=1, pp_size=2),
        mha_pool(start_layer=16, end_layer=32, layer_num=4),
    )
    assert shards_of(rank, every_fourth, byte_order="canonical")
    with pytest.raises(UnusableRankError, match="not consecutive"):
        shards_of(rank, every_fourth, byte_order="canonical", layers_per_object=4)


@pytest.mark.parametrize("end", [31, 32])  # of pools that are not told, the last one
def test_layers_of_a_packed_draft_model_are_cut_behind_the_model_s(end: int) -> None:
    rank = sglang_config(pp_rank=1, pp_size=2)
    pool = mha_pool(start_layer=16, layer_num=17, target_layer_num=16, end_layer=end)
    cut = shards_of(rank, pool, byte_order="canonical", layers_per_object=8)
    assert [(shard.layer_start, shard.layer_count) for shard in cut] == [(16, 8), (24, 8), (32, 1)]


def test_a_config_of_an_old_version_without_the_newer_fields_works() -> None:
    assert shards_of(RankCoordinates.of(SimpleNamespace(tp_rank=1, tp_size=2)), mha_pool()) == (
        Shard(layer_count=32, head_group=1, head_groups=2),
    )
