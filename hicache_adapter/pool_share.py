"""What a rank holds of a pool's pages, and who can tell."""

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hicache_adapter.config import AdapterConfig
from hicache_adapter.model_facts import ModelFacts
from hicache_adapter.rank_coordinates import RankCoordinates
from kvstore_client.identity import Identity
from kvstore_client.keys import Shard

_PARTITION_VARIABLE = "SGLANG_PP_LAYER_PARTITION"


class PoolShare(NamedTuple):
    """What this rank holds of each page of a pool."""

    identity: Identity
    shards: tuple[Shard, ...]
    split: int
    """Head groups that the rank's share is cut into; 1 where it lies in one object."""


Identify = Callable[[RankCoordinates, Any, AdapterConfig, ModelFacts], PoolShare]


def pipeline_stage(rank: RankCoordinates, pool: Any, environ: Mapping[str, str] = os.environ) -> str:
    """Names the stage where only that tells which of the model's layers a pool holds; else empty.

    Pools of hybrid models number their layers from 0 on in each stage, and SGLang doesn't tell a storage backend which
    layers of the model those are. They follow from the stage and from how the layers are dealt out to stages. In the
    first stage both numberings are the same.
    """
    if rank.pp_rank == 0 or int(getattr(pool, "start_layer", None) or 0) > 0:
        return ""
    partition = environ.get(_PARTITION_VARIABLE, "").replace(" ", "")
    return f"{rank.pp_rank}/{rank.pp_size}" + (f" of {partition}" if partition else "")
