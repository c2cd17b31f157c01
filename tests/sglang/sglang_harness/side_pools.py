"""SGLang's real side pools on a CPU: sliding window, recurrent states, a draft model's KV cache."""

from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.pool_host import PoolEntry
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost

from sglang_harness.case import Case

SIDE_SLOTS = 512  # of each device pool; its host pool has half as many again


def side_pool_entries(case: Case, attention_pools: Any, *, kv_slots: int) -> list[PoolEntry]:
    """One entry a side pool of the case. `attention_pools(case, slots) -> (device pool, host pool)`; pools that
    follow KV have its `kv_slots`.
    """
    entries = []
    for name, changes in case.side_pools.items():
        if name == "mamba":
            device_pool, host_pool = _state_pools(case, changes)
        else:
            slots = kv_slots if case.follows_kv(name) else SIDE_SLOTS
            device_pool, host_pool = attention_pools(case.side_case(name), slots)
        entries.append(PoolEntry(PoolName(name), host_pool, device_pool, lambda _: None))
    return entries


def query_transfers(case: Case) -> list[PoolTransfer]:
    """What the scheduler passes with a storage query: windows by their length, and pools that follow KV."""
    return [
        PoolTransfer(PoolName(name), indices_from_pool=PoolName.KV)
        if case.follows_kv(name)
        else PoolTransfer(
            PoolName(name), keys=["?"] * case.window(name), hit_policy=PoolHitPolicy.TRAILING_PAGES
        )
        for name in case.side_pools
    ]


def _state_pools(case: Case, changes: dict[str, Any]) -> tuple[Any, Any]:
    from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
    from sglang.srt.mem_cache.memory_pool import MambaPool

    layers = list(range(changes.get("layers", 2)))
    shape = Mamba2StateShape.create(
        tp_world_size=case.tp_size,
        intermediate_size=changes.get("width", 64),
        n_groups=case.tp_size,
        num_heads=changes.get("heads", 4),
        head_dim=changes.get("head_dim", 16),
        state_size=changes.get("state_size", 8),
        conv_kernel=4,
    )
    dtype = Mamba2StateDType(
        conv=torch.bfloat16, temporal=getattr(torch, changes.get("state_dtype", "float32"))
    )
    device_pool = MambaPool(
        size=32,
        spec_state_size=0,
        cache_params=Mamba2CacheParams(shape=shape, dtype=dtype, layers=layers),
        mamba_layer_ids=layers,
        device="cpu",
    )
    (info,) = device_pool.get_device_pool_infos()
    host_pool = MambaPoolHost(
        info.buffer_info,
        1.5,
        0,
        device_capacity=device_pool.size,
        pin_memory=False,
        layout=changes.get("layout", case.layout),
        allocator_type=case.allocator,
    )
    return device_pool, host_pool
