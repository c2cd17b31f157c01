"""What a rank holds of the KV pool's pages."""

from dataclasses import replace
from typing import Any

from hicache_adapter.config import AdapterConfig
from hicache_adapter.model_facts import ModelFacts
from hicache_adapter.packed_rows import nvfp4_heads
from hicache_adapter.page_identity import head_split, page_identity, rank_shards
from hicache_adapter.pool_share import Identify, PoolShare, pipeline_stage
from hicache_adapter.rank_coordinates import RankCoordinates

_PACKED: dict[str, Identify] = {"MiniMaxM3Nvfp4MainKVPoolHost": nvfp4_heads}
_LOGICAL = "LogicalHostPool"


def lies_in_side_pools(pool: Any) -> bool:
    """Whether the pool only numbers pages whose bytes are all in side pools (DeepSeek V4)."""
    return _LOGICAL in _ancestry(pool)


def kv_pool_share(
    rank: RankCoordinates, pool: Any, config: AdapterConfig, facts: ModelFacts, *, flat_pages: bool
) -> PoolShare:
    """Identity and shards of the KV pool. ConfigError where they can't be told; the same on every rank. `flat_pages`: as
    for page_identity.
    """
    identify = next((_PACKED[name] for name in _ancestry(pool) if name in _PACKED), None)
    if identify is not None:
        share = identify(rank, pool, config, facts)
    else:
        identity = page_identity(rank, pool, config, facts, flat_pages=flat_pages)
        share = PoolShare(identity, rank_shards(rank, pool), head_split(rank, pool))
    return share._replace(identity=replace(share.identity, stage=pipeline_stage(rank, pool)))


def _ancestry(pool: Any) -> list[str]:
    return [ancestor.__name__ for ancestor in type(pool).__mro__]
