"""Which side pools are served, and what makes their bytes interchangeable. A new kind is one entry of SIDE_POOLS,
and one function where its bytes are of a new sort.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from hicache_adapter.config import AdapterConfig
from hicache_adapter.model_facts import ModelFacts
from hicache_adapter.page_identity import attention_identity, head_split, layer_shards
from hicache_adapter.state_identity import state_identity
from kvstore_client.errors import ConfigError
from kvstore_client.identity import Identity
from kvstore_client.keys import Shard


class PoolShare(NamedTuple):
    """What this rank holds of each page of a pool."""

    identity: Identity
    shards: tuple[Shard, ...]
    split: int
    """Head groups that the rank's share is cut into; 1 where it lies in one object."""


Identify = Callable[[Any, Any, AdapterConfig, ModelFacts], PoolShare]


def _head_pages(storage_config: Any, pool: Any, config: AdapterConfig, facts: ModelFacts) -> PoolShare:
    """Keys and values of heads that the TP ranks share out, also where the model's KV pool is replicated."""
    split = head_split(storage_config, pool, replicated=False)
    shards = layer_shards(storage_config, _own_layers(pool), groups_a_rank=split)
    return PoolShare(attention_identity(storage_config, pool, config, facts, replicated=False), shards, split)


def _latent_pages(storage_config: Any, pool: Any, config: AdapterConfig, facts: ModelFacts) -> PoolShare:
    """Latent rows (MLA): every TP rank holds the same bytes."""
    identity = attention_identity(storage_config, pool, config, facts, replicated=True)
    return PoolShare(identity, layer_shards(storage_config, _own_layers(pool), groups_a_rank=0), 1)


def _states(storage_config: Any, pool: Any, config: AdapterConfig, facts: ModelFacts) -> PoolShare:
    """Recurrent states: shared out over the TP ranks, also where the model's KV pool is replicated."""
    identity = state_identity(storage_config, pool, config, facts)
    shards = layer_shards(storage_config, range(int(pool.num_mamba_layers)), groups_a_rank=1)
    return PoolShare(identity, shards, 1)


def _draft(identify: Identify) -> Identify:
    """The same for pages of a draft model that has a pool of its own."""

    def of_draft_model(storage_config: Any, pool: Any, config: AdapterConfig, facts: ModelFacts) -> PoolShare:
        if not facts.draft_model:
            raise ConfigError(
                "speculative-draft-model-path", "SGLang does not say which draft model it serves"
            )
        share = identify(storage_config, pool, config, facts)
        return share._replace(identity=replace(share.identity, draft_model=facts.draft_model))

    return of_draft_model


_ATTENTION: Mapping[str, Identify] = {
    "MHATokenToKVPoolHost": _head_pages,
    "MLATokenToKVPoolHost": _latent_pages,
}
_DRAFT_ATTENTION = {name: _draft(identify) for name, identify in _ATTENTION.items()}

# SGLang's name of the pool -> host pool class that it or an ancestor has -> what its bytes are.
SIDE_POOLS: Mapping[str, Mapping[str, Identify]] = {
    "swa": _ATTENTION,
    "mamba": {"MambaPoolHost": _states},
    "draft": _DRAFT_ATTENTION,
    "draft_swa": _DRAFT_ATTENTION,
}


def side_pool_share(
    name: str, storage_config: Any, pool: Any, config: AdapterConfig, facts: ModelFacts
) -> PoolShare:
    """What this rank holds of each page of the side pool. ConfigError for what can't be identified, the same on
    every rank.
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
    if int(getattr(storage_config, "pp_size", 1)) > 1:
        raise ConfigError(
            "pp-size", "side pools don't say which layers a pipeline stage holds; use pp-size 1"
        )
    share = identify(storage_config, pool, config, facts)
    return share._replace(identity=replace(share.identity, pool=name))


def _own_layers(pool: Any) -> range:
    """Layers are numbered within the pool: it does not say which of the model's they are."""
    return range(int(pool.layer_num))
