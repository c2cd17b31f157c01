"""Which part of each page this rank holds, and into which objects it is cut."""

from itertools import pairwise
from typing import Any

from hicache_adapter.byte_order import CANONICAL
from hicache_adapter.config import AdapterConfig
from hicache_adapter.page_identity import UnusableRankError, is_replicated
from hicache_adapter.rank_coordinates import RankCoordinates
from kvstore_client.errors import ConfigError
from kvstore_client.keys import Shard
from kvstore_client.protocol import SHARDS_MAX


def head_split(
    rank: RankCoordinates, pool: Any, *, replicated: bool | None = None, byte_order: str = ""
) -> int:
    """Into how many head groups this rank's share is cut, so that fleets of other TP sizes find theirs
    (`tp_lcm_size`). `replicated`: whether all TP ranks hold the same bytes; None for the KV pool. ConfigError for
    heads that don't come out even.
    """
    if replicated is None:
        replicated = is_replicated(rank, pool)
    # As they lie, head groups are whole in page_head only.
    cuts_heads = byte_order == CANONICAL or pool.layout == "page_head"
    lcm, tp_size = rank.tp_lcm_size, rank.tp_size
    if replicated or not lcm or not cuts_heads:
        return 1
    if lcm % tp_size:
        raise ConfigError("tp_lcm_size", f"{lcm} is not a multiple of tp_size {tp_size}")
    split = lcm // tp_size
    if int(pool.head_num) % split:
        raise ConfigError(
            "tp_lcm_size",
            f"{lcm} cuts the {pool.head_num} KV heads of a rank (tp_size {tp_size}) into {split} groups, "
            "which does not come out even; "
            f"use a tp_lcm_size of at most {int(pool.head_num) * tp_size}",
        )
    return split


def rank_shards(rank: RankCoordinates, pool: Any, config: AdapterConfig) -> tuple[Shard, ...]:
    """What this rank holds of each page of the KV pool, an object a shard: head group by head group in the order of
    the pool's heads, within one layer by layer.

    ConfigError for settings that fit no rank. UnusableRankError when pipeline stages don't begin and end where objects
    do: then this rank must not touch the store.
    """
    layer_start = int(getattr(pool, "start_layer", None) or 0)
    layers = range(layer_start, layer_start + int(pool.layer_num))
    if rank.pp_size > 1 and config.layers_per_object:
        _refuse_gaps(rank, pool)
    groups = 0 if is_replicated(rank, pool) else head_split(rank, pool, byte_order=config.byte_order)
    shards = tuple(
        shard
        for group in layer_shards(rank, layers, groups_a_rank=groups)
        for shard in _cut_layers(group, rank, config.layers_per_object)
    )
    if len(shards) > SHARDS_MAX:
        raise ConfigError(
            "layers_per_object" if config.layers_per_object else "tp_lcm_size",
            f"a rank's share of a page would be {len(shards)} objects, the limit is {SHARDS_MAX}; "
            "use a larger layers_per_object or a smaller tp_lcm_size",
        )
    return shards


def layer_shards(rank: RankCoordinates, layers: range, *, groups_a_rank: int) -> tuple[Shard, ...]:
    """This rank's shards of a page: these layers, cut over the TP ranks into `groups_a_rank` head groups each;
    0 where all TP ranks hold the same bytes.
    """
    common = {
        "layer_start": layers.start,
        "layer_count": len(layers),
        "token_part": rank.attn_cp_rank,
        "token_parts": max(1, rank.attn_cp_size),
    }
    if groups_a_rank == 0:
        return (Shard(**common),)
    groups = groups_a_rank * rank.tp_size
    return tuple(
        Shard(head_group=rank.tp_rank * groups_a_rank + part, head_groups=groups, **common)
        for part in range(groups_a_rank)
    )


def _refuse_gaps(rank: RankCoordinates, pool: Any) -> None:
    """UnusableRankError for a stage whose pool keeps only some of its layers: what it numbers from the stage's first on
    would be taken for others.
    """
    end = getattr(pool, "end_layer", None)
    if end is None:
        return
    held = int(getattr(pool, "target_layer_num", None) or pool.layer_num)
    spanned = int(end) - int(getattr(pool, "start_layer", None) or 0)
    if held not in (spanned, spanned + 1):  # some pools name the last layer, some the one behind it
        raise UnusableRankError(
            f"the {held} layers of pipeline stage {rank.pp_rank} of {rank.pp_size} are not consecutive ones of the "
            "model's, so they can't be cut by layers_per_object; leave it out"
        )


def _cut_layers(whole: Shard, rank: RankCoordinates, layers_per_object: int) -> list[Shard]:
    """The shard cut at each multiple of `layers_per_object`, counted from the model's first layer: at the same layers
    in every engine, whatever its stages. 0: not cut.
    """
    if not layers_per_object:
        return [whole]
    start, end = whole.layer_start, whole.layer_start + whole.layer_count
    is_last_stage = rank.pp_rank == rank.pp_size - 1
    for border in (start,) if is_last_stage else (start, end):
        if border % layers_per_object:
            raise UnusableRankError(
                f"pipeline stage {rank.pp_rank} of {rank.pp_size} holds layers {start} to {end - 1}, and layer "
                f"{border}, where stages meet, is no multiple of layers_per_object {layers_per_object}; use a "
                "common divisor of all the layers where stages meet"
            )
    borders = [*range(start, end, layers_per_object), end]
    return [whole._replace(layer_start=low, layer_count=high - low) for low, high in pairwise(borders)]
