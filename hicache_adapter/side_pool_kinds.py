"""Which side pools are served, and what makes their bytes interchangeable. A new kind is one entry of SIDE_POOLS,
and one function where its bytes are of a new sort.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hicache_adapter import packed_rows
from hicache_adapter.config import AdapterConfig
from hicache_adapter.model_facts import ModelFacts
from hicache_adapter.page_identity import attention_identity, head_split, layer_shards, model_fields
from hicache_adapter.pool_share import Identify, PoolShare, pipeline_stage
from hicache_adapter.rank_coordinates import RankCoordinates
from hicache_adapter.sglang_types import STATE_POOL
from kvstore_client.errors import ConfigError
from kvstore_client.identity import Identity

_PLAIN_DTYPES = ("bfloat16", "float16", "float32", "float64")


def _head_pages(rank: RankCoordinates, pool: Any, config: AdapterConfig, facts: ModelFacts) -> PoolShare:
    """Keys and values of heads that the TP ranks share out, also where the model's KV pool is replicated."""
    split = head_split(rank, pool, replicated=False)
    shards = layer_shards(rank, _own_layers(pool), groups_a_rank=split)
    return PoolShare(attention_identity(rank, pool, config, facts, replicated=False), shards, split)


def _latent_pages(rank: RankCoordinates, pool: Any, config: AdapterConfig, facts: ModelFacts) -> PoolShare:
    """Latent rows (MLA): every TP rank holds the same bytes."""
    identity = attention_identity(rank, pool, config, facts, replicated=True)
    return PoolShare(identity, layer_shards(rank, _own_layers(pool), groups_a_rank=0), 1)


def _states(rank: RankCoordinates, pool: Any, config: AdapterConfig, facts: ModelFacts) -> PoolShare:
    """Recurrent states: shared out over the TP ranks, also where the model's KV pool is replicated."""
    identity = _state_identity(rank, pool, config, facts)
    shards = layer_shards(rank, range(int(pool.num_mamba_layers)), groups_a_rank=1)
    return PoolShare(identity, shards, 1)


def _draft(identify: Identify) -> Identify:
    """The same for pages of a draft model that has a pool of its own."""

    def of_draft_model(
        rank: RankCoordinates, pool: Any, config: AdapterConfig, facts: ModelFacts
    ) -> PoolShare:
        if not facts.draft_model:
            raise ConfigError(
                "speculative-draft-model-path", "SGLang does not say which draft model it serves"
            )
        share = identify(rank, pool, config, facts)
        return share._replace(identity=replace(share.identity, draft_model=facts.draft_model))

    return of_draft_model


_Kinds = Mapping[str, Identify]


def _drafts(kinds: _Kinds) -> _Kinds:
    return {pool_class: _draft(identify) for pool_class, identify in kinds.items()}


_ATTENTION: _Kinds = {"MHATokenToKVPoolHost": _head_pages, "MLATokenToKVPoolHost": _latent_pages}
_WINDOWS = {**_ATTENTION, "DeepSeekV4PagedHostPool": packed_rows.deepseek_v4_windows}
_INDEX_KEYS: _Kinds = {
    "DSAIndexerPoolHost": packed_rows.dsa_index_keys,
    "QSAIndexerPoolHost": packed_rows.qsa_index_keys,
    "MHATokenToKOnlyPoolHost": packed_rows.plain_index_keys,
    "MiniMaxM3Nvfp4IndexKPoolHost": packed_rows.nvfp4_index_keys,
}
_ROWS: _Kinds = {"DeepSeekV4PagedHostPool": packed_rows.deepseek_v4_rows}
_RINGS: _Kinds = {"DeepSeekV4StateHostPool": packed_rows.deepseek_v4_states}
_V4_PARTS = (
    *("c1", "c1_indexer", "c1_indexer_scale", "c2", "c2_indexer", "c2_indexer_scale"),
    *("c4", "c4_rope", "c4_indexer", "c4_indexer_scale", "c128", "c128_rope"),
)
_V4_STATES = ("c4_state", "c4_indexer_state", "c128_state")

# SGLang's name of the pool -> host pool class that it or an ancestor has -> what its bytes are. The nearest ancestor
# decides.
SIDE_POOLS: Mapping[str, _Kinds] = {
    "swa": _WINDOWS,
    "auxiliary_swa": _WINDOWS,
    "mamba": {"MambaPoolHost": _states},
    "indexer": _INDEX_KEYS,
    "draft": _drafts(_WINDOWS),
    "draft_swa": _drafts(_WINDOWS),
    "draft_indexer": _drafts(_INDEX_KEYS),
    **{f"deepseek_v4_{part}": _ROWS for part in _V4_PARTS},
    **{f"deepseek_v4_{part}": _RINGS for part in _V4_STATES},
}


def side_pool_share(
    name: str, rank: RankCoordinates, pool: Any, config: AdapterConfig, facts: ModelFacts
) -> PoolShare:
    """What this rank holds of each page of the side pool. ConfigError for what can't be identified or is never found
    again, the same on every rank.
    """
    kinds = SIDE_POOLS.get(name, {})
    ancestry = [ancestor.__name__ for ancestor in type(pool).__mro__]
    identify = next((kinds[ancestor] for ancestor in ancestry if ancestor in kinds), None)
    if identify is None:
        raise ConfigError(
            "hicache-storage-backend",
            f"a {type(pool).__name__} of that name is not stored in this release; serve the model without a "
            "storage backend",
        )
    share = identify(rank, pool, config, facts)
    _refuse_what_is_never_written(name, rank, share)
    stage = pipeline_stage(rank, pool)
    return share._replace(identity=replace(share.identity, pool=name, stage=stage))


def _refuse_what_is_never_written(name: str, rank: RankCoordinates, share: PoolShare) -> None:
    """SGLang has one TP rank alone write what lies beside a KV cache that all ranks hold alike, states excepted. What the
    ranks share out is then never complete, and no prefix of the model would ever be a hit.
    """
    shared_out = any(shard.head_groups > 1 for shard in share.shards)
    if rank.is_mla_model and rank.tp_size > 1 and shared_out and name != STATE_POOL:
        raise ConfigError(
            "tp-size",
            "each TP rank has heads of its own in it, and SGLang writes it on one rank only, as it does with this "
            "model's KV cache, so that nothing would ever be found; use tp-size 1, or a draft model with a KV cache "
            "of the same kind",
        )


def _own_layers(pool: Any) -> range:
    first = int(getattr(pool, "start_layer", None) or 0)
    return range(first, first + int(pool.layer_num))


def _state_identity(rank: RankCoordinates, pool: Any, config: AdapterConfig, facts: ModelFacts) -> Identity:
    """The identity of a pool of recurrent states (Mamba, linear attention, short convolution): one slot a key, the model's
    state after the page's last token. ConfigError where it can't be told; the same on every rank.

    Shapes are of one rank's share: how heads and groups are dealt out to ranks differs from model to model, so
    states of other TP sizes are never taken for these.
    """
    if getattr(pool, "slot_state_device_tensors", ()):
        raise ConfigError(
            "hicache-storage-backend",
            f"{type(pool).__name__} keeps states beside its slots (int8 checkpoints, side states) that SGLang does "
            "not give to storage backends",
        )
    parts = [("conv", shape, pool.conv_dtype) for shape in pool.conv_state_shapes]
    if int(pool.temporal_state_elem_size) > 0:
        parts.append(("temporal", pool.temporal_state_shape, pool.temporal_dtype))
    dtypes = [_plain_dtype(dtype) for _, _, dtype in parts]
    drafts = len(getattr(pool, "mtp_draft_buffer_infos", ()))
    return Identity(
        kv_dtype="+".join(dict.fromkeys(dtypes)),
        store_dtype="+".join(dict.fromkeys(dtypes)),
        pool_class=type(pool).__name__,
        byte_order=pool.layout,
        page_size=int(pool.page_size),
        draft_layer_count=drafts,
        draft_model=facts.draft_model if drafts else "",
        state_shape=" ".join(
            [
                *(
                    f"{name}[{','.join(str(int(size)) for size in shape)}]:{dtype}"
                    for (name, shape, _), dtype in zip(parts, dtypes, strict=True)
                ),
                # Which axis comes first is up to the kernels of the device.
                f"on:{facts.accelerator or _device_type(pool)}",
            ]
        ),
        **model_fields(rank, config, facts),
    )


def _plain_dtype(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in _PLAIN_DTYPES:
        raise ConfigError(
            "mamba-ssm-dtype",
            f"states of {name} don't say what they mean; use one of {', '.join(_PLAIN_DTYPES)}",
        )
    return name


def _device_type(pool: Any) -> str:
    older = not hasattr(pool, "buffer_info")  # 0.5.20 and older
    states = pool.device_pool.mamba_cache if older else pool.buffer_info
    return str(states.temporal.device.type)
