"""Pools whose pages are rows of packed bytes: the keys of sparse attention's indexers, DeepSeek V4's compressed pools,
NVFP4 pages. Only SGLang's kernels know what lies in a row, so what its bytes depend on is part of the identity.

All of them but one hold the same bytes on every TP rank; NVFP4 keys and values are those of the rank's heads.
"""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hicache_adapter.config import AdapterConfig
from hicache_adapter.deepseek_v4_rows import row_formats
from hicache_adapter.model_facts import ModelFacts
from hicache_adapter.page_identity import model_fields
from hicache_adapter.pool_share import PoolShare
from hicache_adapter.rank_coordinates import RankCoordinates
from hicache_adapter.rank_shards import layer_shards
from kvstore_client.errors import ConfigError
from kvstore_client.identity import Identity

_PLAIN_DTYPES = ("bfloat16", "float16", "float32")


def dsa_index_keys(rank: RankCoordinates, pool: Any, config: AdapterConfig, facts: ModelFacts) -> PoolShare:
    """Keys of the sparse attention's indexer (DeepSeek V3.2, GLM): fp8 with a float32 scale a block of elements. Layers
    that use the choice of another one have none; with its layers split over CP ranks a rank has its own alone.
    """
    device = pool.device_pool
    first = int(pool.start_layer)
    live = [first + int(layer) for layer in pool._live_target_layers]
    drafts = int(pool.layer_num) - len(live)
    rows = [
        f"keys[{int(device.index_head_dim)}]/{int(device.quant_block_size)}",
        f"row[{int(pool.indexer_page_stride_size)}]",
        f"pooled:{int(getattr(device, 'index_kpool', 1))}",
        f"compressed:{bool(getattr(device, 'index_kpool_compress', False))}",
        f"kernel page:{int(getattr(device, 'index_page_size', pool.page_size))}",
        f"preshuffled:{_keys_are_preshuffled(facts)}",
        *_holes(live),
        _device(device.device, facts),
    ]
    return _replicated(rank, pool, config, facts, live or [first], drafts, "fp8_e4m3+float32", rows)


def qsa_index_keys(rank: RankCoordinates, pool: Any, config: AdapterConfig, facts: ModelFacts) -> PoolShare:
    """Averaged keys of Qwen's sparse attention, one for each few tokens."""
    device = pool.device_pool
    dtype = str(device.qsa_compressed_dtype).removeprefix("torch.")
    target_layers = len(device.qsa_compressed_k_buffer_pool)
    rows = [
        f"keys[{int(device.qsa_index_kv_heads)},{int(device.qsa_index_head_dim)}]",
        f"row[{int(pool.item_bytes)}]",
        f"tokens a key:{int(device.qsa_compress_ratio)}",
        _device(device.device, facts),
    ]
    layers = list(range(target_layers))
    return _replicated(rank, pool, config, facts, layers, int(pool.layer_num) - target_layers, dtype, rows)


def plain_index_keys(rank: RankCoordinates, pool: Any, config: AdapterConfig, facts: ModelFacts) -> PoolShare:
    """Keys of one head that no rank shares with another (MiniMax M3's indexer)."""
    dtype = str(pool.dtype).removeprefix("torch.")
    if dtype not in _PLAIN_DTYPES:
        raise ConfigError(
            "kv-cache-dtype", f"index keys of {dtype} don't say what they mean; known are {_PLAIN_DTYPES}"
        )
    if int(pool.head_num) != 1:
        raise ConfigError(
            "hicache-storage-backend",
            f"{type(pool).__name__} has {pool.head_num} heads and does not say how ranks share them out; "
            "known is one head",
        )
    first = int(pool.start_layer or 0)
    layers = list(range(first, first + int(pool.layer_num)))
    rows = [f"keys[1,{int(pool.head_dim)}]"]
    return _replicated(rank, pool, config, facts, layers, 0, dtype, rows)


def nvfp4_index_keys(rank: RankCoordinates, pool: Any, config: AdapterConfig, facts: ModelFacts) -> PoolShare:
    """NVFP4 keys of MiniMax M3's indexer with their scales, one row a layer."""
    rows = [f"row[{int(pool.row_bytes)}]"]
    return _replicated(rank, pool, config, facts, _own_layers(pool), 0, "nvfp4", rows)


def nvfp4_heads(rank: RankCoordinates, pool: Any, config: AdapterConfig, facts: ModelFacts) -> PoolShare:
    """NVFP4 keys and values with their scales, one row a layer: those of the rank's heads. A row does not say how many
    heads it has but is as long as they need, so other TP sizes never meet.
    """
    rows = [f"row[{int(pool.row_bytes)}]"]
    layers = _own_layers(pool)
    identity = _identity(rank, pool, config, facts, 0, "nvfp4", rows)
    shards = layer_shards(rank, range(layers[0], layers[0] + len(layers)), groups_a_rank=1)
    return PoolShare(identity, shards, 1)


def deepseek_v4_rows(rank: RankCoordinates, pool: Any, config: AdapterConfig, facts: ModelFacts) -> PoolShare:
    """One of DeepSeek V4's pools: a row a layer and page, of compressed keys, index keys or scales."""
    device = pool.device_buffers[0]
    shape = ",".join(str(int(size)) for size in device.shape[1:])
    rows = [
        f"row[{int(pool.item_bytes)}]",
        f"of[{shape}]:{str(device.dtype).removeprefix('torch.')}",
        *row_formats(),
        _device(device.device, facts),
    ]
    layers = list(range(int(pool.layer_num)))
    return _replicated(rank, pool, config, facts, layers, 0, "packed", rows)


def deepseek_v4_windows(
    rank: RankCoordinates, pool: Any, config: AdapterConfig, facts: ModelFacts
) -> PoolShare:
    """DeepSeek V4's sliding window: a draft model's layers lie behind the model's own and are not told apart."""
    share = deepseek_v4_rows(rank, pool, config, facts)
    return share._replace(identity=replace(share.identity, draft_model=facts.draft_model))


def deepseek_v4_states(
    rank: RankCoordinates, pool: Any, config: AdapterConfig, facts: ModelFacts
) -> PoolShare:
    """What DeepSeek V4's compressor has not compressed yet at a page's end, a ring of tokens a layer."""
    state = pool.state_pools[0].kv_score_buffer.kv_score
    rows = [
        f"row[{int(pool.state_page_bytes)}]",
        f"ring:{int(pool.ring_size)}",
        f"of[{int(state.shape[-1])}]:{str(state.dtype).removeprefix('torch.')}",
        *row_formats(),
        _device(state.device, facts),
    ]
    layers = list(range(int(pool.layer_num)))
    return _replicated(rank, pool, config, facts, layers, 0, "packed", rows)


def _replicated(
    rank: RankCoordinates,
    pool: Any,
    config: AdapterConfig,
    facts: ModelFacts,
    layers: Sequence[int],
    drafts: int,
    dtype: str,
    rows: Sequence[str],
) -> PoolShare:
    identity = _identity(rank, pool, config, facts, drafts, dtype, rows)
    held = range(layers[0], layers[0] + len(layers) + drafts)
    return PoolShare(identity, layer_shards(rank, held, groups_a_rank=0), 1)


def _identity(
    rank: RankCoordinates,
    pool: Any,
    config: AdapterConfig,
    facts: ModelFacts,
    drafts: int,
    dtype: str,
    rows: Sequence[str],
) -> Identity:
    return Identity(
        kv_dtype=dtype,
        store_dtype=str(pool.dtype).removeprefix("torch."),
        pool_class=type(pool).__name__,
        byte_order=pool.layout,
        page_size=int(pool.page_size),
        draft_layer_count=drafts,
        draft_model=facts.draft_model if drafts else "",
        state_shape=" ".join(rows),
        **model_fields(rank, config, facts),
    )


def _own_layers(pool: Any) -> list[int]:
    first = int(pool.start_layer or 0)
    return list(range(first, first + int(pool.layer_num)))


def _holes(layers: Sequence[int]) -> list[str]:
    """Which layers, where a first one and a number don't say it."""
    if not layers or layers[-1] - layers[0] + 1 == len(layers):
        return []
    return ["layers:" + ",".join(map(str, layers))]


def _device(device: Any, facts: ModelFacts) -> str:
    """Kernels of different kinds of devices order the bytes of a row as they please."""
    return f"on:{facts.accelerator or str(getattr(device, 'type', device)).partition(':')[0]}"


def _keys_are_preshuffled(facts: ModelFacts) -> bool:
    """Whether a page's index keys lie in tiles (some of AMD's kernels read them so)."""
    if facts.accelerator == "":
        return False
    module = sys.modules.get("sglang.srt.mem_cache.index_key_cache")
    if module is None:
        module = importlib.import_module("sglang.srt.mem_cache.index_key_cache")
    return bool(module._use_aiter_preshuffle)
