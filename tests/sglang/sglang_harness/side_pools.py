"""SGLang's real side pools on a CPU: sliding window, recurrent states, a draft model's KV cache."""

from types import SimpleNamespace
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
        elif name == "indexer":
            device_pool, host_pool = _averaged_keys(case, changes, kv_slots)
        else:
            slots = kv_slots if case.follows_kv(name) else SIDE_SLOTS
            device_pool, host_pool = attention_pools(case.side_case(name), slots)
        entries.append(PoolEntry(PoolName(name), host_pool, device_pool, lambda _: None))
    return entries


def query_transfers(case: Case, sources: dict[str, str]) -> list[PoolTransfer]:
    """What the scheduler passes with a storage query: windows by their length, and pools that follow others. `sources`: by
    pool, the one whose slots it uses.
    """
    transfers = []
    for name, source in sources.items():
        if source == "kv":
            transfers.append(PoolTransfer(PoolName(name), indices_from_pool=PoolName.KV))
            continue
        transfers.append(
            PoolTransfer(
                PoolName(name),
                keys=["?"] * case.window(source or name),
                hit_policy=PoolHitPolicy.TRAILING_PAGES,
                indices_from_pool=PoolName(source) if source else None,
            )
        )
    return transfers


def _averaged_keys(case: Case, changes: dict[str, Any], kv_slots: int) -> tuple[Any, Any]:
    """The index keys of Qwen's sparse attention: one for `ratio` tokens."""
    from sglang.srt.mem_cache.pool_host.qsa import QSAIndexerPoolHost
    from sglang.srt.mem_cache.qsa_kv_pool import QSATokenToKVPool

    device_pool = QSATokenToKVPool(
        size=kv_slots,
        dtype=torch.bfloat16,
        page_size=case.page_size,
        head_num=1,
        head_dim=16,
        full_attention_layer_ids=list(range(changes.get("layers", 2))),
        device="cpu",
        mamba_pool=_state_pools(case, {})[0],
        qsa_index_kv_heads=1,
        qsa_index_head_dim=changes.get("head_dim", 32),
        qsa_compress_ratio=changes.get("ratio", 4),
        qsa_token_topk=64,
        num_request_slots=4,
    )
    slots = _kv_host_slots(kv_slots, case)
    place = SimpleNamespace(
        page_size=case.page_size,
        page_num=slots // case.page_size,
        layout=case.layout,
        device="cpu",
        pin_memory=False,
    )
    return device_pool, QSAIndexerPoolHost(device_pool, place, allocator_type=case.allocator)


def _kv_host_slots(kv_slots: int, case: Case) -> int:
    """Of the host pool that SGLang builds beside a device pool of `kv_slots`, half as large again."""
    return (int(kv_slots * 1.5) // case.page_size + 1) * case.page_size


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
