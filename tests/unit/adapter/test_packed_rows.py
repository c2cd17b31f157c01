"""Pools of packed rows (indexers, DeepSeek V4, NVFP4): what changes their bytes changes their identity, and whose bytes
they are is in their shards.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hicache_adapter import AdapterConfig, ConfigError, packed_rows
from hicache_adapter.kv_pool_share import kv_pool_share, lies_in_side_pools
from hicache_adapter.model_facts import ModelFacts
from hicache_adapter.pool_share import PoolShare, pipeline_stage
from hicache_adapter.rank_coordinates import RankCoordinates
from hicache_adapter.side_pool_kinds import SIDE_POOLS, side_pool_share
from kvstore_client import Shard

PLACE = {"layout": "page_first", "page_size": 64, "dtype": "torch.uint8"}
FORMATS = ["format:v4", "compressed:auto"]


class DSAIndexerPoolHost(SimpleNamespace):
    """The attributes of SGLang's pool."""


class MHATokenToKOnlyPoolHost(SimpleNamespace):
    """The attributes of SGLang's pool."""


class MiniMaxM3Nvfp4IndexKPoolHost(SimpleNamespace):
    """The attributes of SGLang's pool."""


class MiniMaxM3Nvfp4MainKVPoolHost(MiniMaxM3Nvfp4IndexKPoolHost):
    """SGLang derives it from that of the index keys."""


class DeepSeekV4PagedHostPool(SimpleNamespace):
    """The attributes of SGLang's pool."""


class QSAIndexerPoolHost(DeepSeekV4PagedHostPool):
    """SGLang derives it so."""


class DeepSeekV4StateHostPool(SimpleNamespace):
    """The attributes of SGLang's pool."""


class LogicalHostPool(SimpleNamespace):
    """SGLang's pool that numbers pages and has none."""


def dsa(live: tuple[int, ...] = (0, 1, 2), drafts: int = 0, start: int = 0, **device: Any) -> Any:
    fields = {"index_head_dim": 128, "quant_block_size": 128, "device": "cuda", "index_page_size": 64}
    return DSAIndexerPoolHost(
        device_pool=SimpleNamespace(**(fields | device)),
        start_layer=start,
        _live_target_layers=list(live),
        layer_num=len(live) + drafts,
        indexer_page_stride_size=8448,
        **PLACE,
    )


def qsa(target_layers: int = 2, drafts: int = 0, dtype: str = "torch.bfloat16", **device: Any) -> Any:
    fields = {"qsa_index_kv_heads": 1, "qsa_index_head_dim": 128, "qsa_compress_ratio": 4, "device": "cuda"}
    fields |= {"qsa_compressed_k_buffer_pool": [None] * target_layers, "qsa_compressed_dtype": dtype}
    pool = SimpleNamespace(**(fields | device))
    return QSAIndexerPoolHost(device_pool=pool, layer_num=target_layers + drafts, item_bytes=4096, **PLACE)


def k_only(**changes: Any) -> Any:
    fields = {"head_num": 1, "head_dim": 128, "layer_num": 3, "start_layer": 0}
    return MHATokenToKOnlyPoolHost(**(PLACE | {"dtype": "torch.bfloat16"} | fields | changes))


def nvfp4(pool_class: type = MiniMaxM3Nvfp4IndexKPoolHost, **changes: Any) -> Any:
    return pool_class(**(PLACE | {"row_bytes": 9216, "layer_num": 3, "start_layer": 0} | changes))


def v4(shape: tuple[int, ...] = (9, 37440), dtype: str = "torch.uint8", **changes: Any) -> Any:
    buffer = SimpleNamespace(shape=shape, dtype=dtype, device=SimpleNamespace(type="cuda"))
    fields = {"item_bytes": 37440, "layer_num": 2, "device_buffers": [buffer] * 2, "start_layer": 0}
    return DeepSeekV4PagedHostPool(**(PLACE | fields | changes))


def v4_state(width: int = 64, **changes: Any) -> Any:
    state = SimpleNamespace(shape=(100, width), dtype="torch.float32", device=SimpleNamespace(type="cuda"))
    pool = SimpleNamespace(kv_score_buffer=SimpleNamespace(kv_score=state))
    fields = {"state_page_bytes": 2048, "ring_size": 8, "layer_num": 2, "state_pools": [pool] * 2}
    return DeepSeekV4StateHostPool(**(PLACE | fields | changes))


def rank(**changes: Any) -> RankCoordinates:
    fields = {"tp_rank": 0, "tp_size": 1, "is_mla_model": False, "model_name": "acme/model"}
    return RankCoordinates.of(SimpleNamespace(**(fields | changes)))


ADAPTER = AdapterConfig.from_extra_config({"masters": "a:1"}, {})
DRAFT = ModelFacts(draft_model="acme/draft@1")


def share(
    name: str, pool: Any, of: RankCoordinates | None = None, facts: ModelFacts | None = None
) -> PoolShare:
    return side_pool_share(name, of or rank(), pool, ADAPTER, facts or ModelFacts())


def kv_share(pool: Any, of: RankCoordinates | None = None) -> PoolShare:
    return kv_pool_share(of or rank(), pool, ADAPTER, ModelFacts(), flat_pages=False)


@pytest.fixture(autouse=True)
def formats(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What SGLang says of DeepSeek V4's rows."""
    formats = list(FORMATS)
    monkeypatch.setattr(packed_rows, "row_formats", lambda: formats)
    return formats


VARIANTS = {
    "index keys": lambda: share("indexer", dsa()),
    "index keys of another width": lambda: share("indexer", dsa(index_head_dim=64)),
    "index keys in other blocks": lambda: share("indexer", dsa(quant_block_size=64)),
    "pooled index keys": lambda: share("indexer", dsa(index_kpool=2)),
    "compressed index keys": lambda: share("indexer", dsa(index_kpool_compress=True)),
    "index keys in other kernel pages": lambda: share("indexer", dsa(index_page_size=16)),
    "index keys of another device": lambda: share("indexer", dsa(device="xpu:1")),
    "index keys of every other layer": lambda: share("indexer", dsa(live=(0, 2, 4))),
    "index keys of others": lambda: share("indexer", dsa(live=(0, 3, 4))),
    "index keys with a draft's": lambda: share("indexer", dsa(drafts=1), facts=DRAFT),
    "index keys with another draft's": lambda: share(
        "indexer", dsa(drafts=1), facts=ModelFacts(draft_model="acme/draft@2")
    ),
    "a draft's index keys": lambda: share("draft_indexer", dsa(), facts=DRAFT),
    "averaged keys": lambda: share("indexer", qsa()),
    "averages of more tokens": lambda: share("indexer", qsa(qsa_compress_ratio=8)),
    "averaged keys of another width": lambda: share("indexer", qsa(qsa_index_head_dim=64)),
    "averaged keys in fp8": lambda: share("indexer", qsa(dtype="torch.float8_e4m3fn")),
    "averaged keys with a draft's": lambda: share("indexer", qsa(drafts=1)),
    "plain keys": lambda: share("indexer", k_only()),
    "plain keys of another width": lambda: share("indexer", k_only(head_dim=64)),
    "plain keys of another dtype": lambda: share("indexer", k_only(dtype="torch.float16")),
    "nvfp4 keys": lambda: share("indexer", nvfp4()),
    "nvfp4 rows of another length": lambda: share("indexer", nvfp4(row_bytes=4608)),
    "nvfp4 keys and values": lambda: kv_share(nvfp4(MiniMaxM3Nvfp4MainKVPoolHost)),
    "nvfp4 keys and values of fewer heads": lambda: kv_share(
        nvfp4(MiniMaxM3Nvfp4MainKVPoolHost, row_bytes=18432)
    ),
    "compressed keys": lambda: share("deepseek_v4_c4", v4()),
    "compressed keys of another ratio": lambda: share("deepseek_v4_c128", v4()),
    "compressed keys in rows of another length": lambda: share("deepseek_v4_c4", v4(item_bytes=74880)),
    "compressed keys in rows of another shape": lambda: share("deepseek_v4_c4", v4((9, 64, 585))),
    "compressed keys of another dtype": lambda: share("deepseek_v4_c4", v4(dtype="torch.int8")),
    "compressed keys in pages of another size": lambda: share("deepseek_v4_c4", v4(page_size=128)),
    "compressed keys in another layout": lambda: share("deepseek_v4_c4", v4(layout="page_first_direct")),
    "V4's window": lambda: share("swa", v4()),
    "V4's window with a draft model": lambda: share("swa", v4(), facts=DRAFT),
    "V4's draft": lambda: share("draft", v4(), facts=DRAFT),
    "V4's draft window": lambda: share("draft_swa", v4(), facts=DRAFT),
    "the compressor's state": lambda: share("deepseek_v4_c4_state", v4_state()),
    "the index compressor's state": lambda: share("deepseek_v4_c4_indexer_state", v4_state()),
    "the compressor's state of a longer ring": lambda: share("deepseek_v4_c4_state", v4_state(ring_size=16)),
    "the compressor's state of another width": lambda: share("deepseek_v4_c4_state", v4_state(128)),
}


def test_every_difference_that_changes_bytes_is_another_identity() -> None:
    names: dict[bytes, str] = {}
    for name, make in VARIANTS.items():
        encoded = make().identity.canonical()
        assert encoded not in names, f"{name} collides with {names[encoded]}"
        names[encoded] = name


def test_rows_of_another_format_of_the_same_size_are_other_rows(formats: list[str]) -> None:
    before = [share("deepseek_v4_c4", v4()), share("deepseek_v4_c4_state", v4_state())]
    formats[0] = "format:v41"
    after = [share("deepseek_v4_c4", v4()), share("deepseek_v4_c4_state", v4_state())]
    assert all(one.identity != other.identity for one, other in zip(before, after, strict=True))


def test_tp_ranks_share_what_each_of_them_holds_whole() -> None:
    whole = {
        "indexer": [dsa(), qsa(), k_only(), nvfp4()],
        "swa": [v4()],
        "deepseek_v4_c4": [v4()],
        "deepseek_v4_c4_state": [v4_state()],
    }
    for name, pools in whole.items():
        for pool in pools:
            ranks = [share(name, pool, rank(tp_rank=number, tp_size=4)) for number in range(4)]
            assert len({(part.identity, part.shards) for part in ranks}) == 1, type(pool).__name__
    heads = [
        kv_share(nvfp4(MiniMaxM3Nvfp4MainKVPoolHost), rank(tp_rank=number, tp_size=2)) for number in range(2)
    ]
    assert heads[0].shards != heads[1].shards


def test_the_shard_says_which_layers_have_index_keys_and_where_the_draft_is_behind_them() -> None:
    assert share("indexer", dsa()).shards == (Shard(layer_count=3),)
    assert share("indexer", dsa(live=(0, 1), drafts=1, start=30)).shards == (
        Shard(layer_start=30, layer_count=3),
    )
    # Layers split over CP ranks: the second one's own.
    split = share("indexer", dsa(live=(2, 3)), rank(attn_cp_rank=1, attn_cp_size=2))
    assert split.shards == (Shard(layer_start=2, layer_count=2, token_part=1, token_parts=2),)


def test_stages_that_number_their_layers_alike_are_told_apart_by_the_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools = [("swa", v4()), ("deepseek_v4_c4", v4()), ("indexer", k_only()), ("indexer", dsa())]
    pools.append(("indexer", dsa(live=(1, 2))))  # whose first layer has none
    for name, pool in pools:
        stages = [
            share(name, pool, rank(pp_rank=number, pp_size=3)).identity.canonical() for number in range(3)
        ]
        assert len(set(stages)) == 3
        assert stages[0] == share(name, pool).identity.canonical()  # the model's first layers, either way
        two = share(name, pool, rank(pp_rank=1, pp_size=2)).identity.canonical()
        assert two not in stages
        monkeypatch.setenv("SGLANG_PP_LAYER_PARTITION", "20, 22,19")
        other = share(name, pool, rank(pp_rank=1, pp_size=3)).identity.canonical()
        assert other not in (*stages, two) and b"1/3 of 20,22,19" in other
        monkeypatch.delenv("SGLANG_PP_LAYER_PARTITION")
    # A pool that knows its layers needs no stage: the same layers of another pipeline are the same pages.
    parts = [share("indexer", dsa(start=30), rank(pp_rank=1, pp_size=size)) for size in (2, 3)]
    assert parts[0] == parts[1] and parts[0].identity.stage == ""


def test_kv_pages_of_hybrid_models_are_told_apart_by_the_stage_as_well() -> None:
    class MHATokenToKVPoolHost(SimpleNamespace):
        """The attributes of SGLang's pool."""

    pool = MHATokenToKVPoolHost(
        **(PLACE | {"dtype": "torch.bfloat16"}), layer_num=8, start_layer=0, head_num=2, head_dim=64
    )
    stages = [kv_share(pool, rank(pp_rank=number, pp_size=2)) for number in range(2)]
    assert [stage.identity.stage for stage in stages] == ["", "1/2"]
    assert kv_share(pool).identity == stages[0].identity
    assert pipeline_stage(rank(pp_rank=1, pp_size=2), SimpleNamespace(start_layer=30)) == ""


def test_every_pool_of_sglang_0_5_23_has_an_entry() -> None:
    named = ["swa", "auxiliary_swa", "mamba", "indexer", "draft", "draft_indexer", "draft_swa"]
    compressed = ["c1", "c1_indexer", "c1_indexer_scale", "c2", "c2_indexer", "c2_indexer_scale"]
    compressed += ["c4", "c4_rope", "c4_indexer", "c4_indexer_scale", "c128", "c128_rope"]
    compressed += ["c4_state", "c4_indexer_state", "c128_state"]
    assert set(SIDE_POOLS) == {*named, *(f"deepseek_v4_{part}" for part in compressed)}


def test_a_pool_that_only_numbers_pages_is_known_by_its_class_alone() -> None:
    assert lies_in_side_pools(LogicalHostPool(kv_buffer=None))
    assert not lies_in_side_pools(SimpleNamespace(kv_buffer=None))


REFUSED = {
    "fp8 keys that don't say which": (lambda: share("indexer", k_only(dtype="torch.uint8")), "uint8"),
    "keys of several heads": (lambda: share("indexer", k_only(head_num=2)), "2 heads"),
    "a draft's index keys without a name": (lambda: share("draft_indexer", dsa()), "draft model"),
    "rows under another name": (lambda: share("mamba", v4()), "DeepSeekV4PagedHostPool of that name"),
    "states under another name": (lambda: share("deepseek_v4_c4", v4_state()), "of that name"),
    "a name of a later release": (lambda: share("deepseek_v5_c4", v4()), "of that name"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_can_not_be_identified_is_refused_with_the_reason(what: str) -> None:
    make, reason = REFUSED[what]
    with pytest.raises(ConfigError, match=reason):
        make()


def test_where_sglang_does_not_say_the_format_the_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from hicache_adapter import deepseek_v4_rows

    monkeypatch.setattr(packed_rows, "row_formats", deepseek_v4_rows.row_formats)  # without SGLang
    with pytest.raises(ConfigError, match="does not say in which format"):
        share("deepseek_v4_c4", v4())
