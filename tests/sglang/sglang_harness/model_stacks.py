"""The pools of whole model families, put together by SGLang's own assembler as a server does it: device pools on a CPU, host
pools, controller and storage backend.
"""

import json
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler
from sglang.srt.mem_cache.memory_pool_host import DeepSeekV4PagedHostPool
from sglang.srt.mem_cache.pool_host import PoolEntry
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.runtime_context import get_context, get_flags, get_parallel

from sglang_harness.case import Case

SLOTS = 4096


class ModelStack(NamedTuple):
    """What SGLang has built."""

    controller: Any
    host_pools: dict[str, Any]
    sources: dict[str, str]
    """By side pool, the pool whose slots it uses; empty where it has its own."""
    kv_pool: Any


def build_model_stack(case: Case, stack: ExitStack) -> ModelStack:
    """For a case with a `model`. What has to stay in force while it is used is entered into `stack`."""
    said = {
        "page_size": case.page_size,
        "hicache_ratio": 1.5,
        "hicache_size": 0,
        "hicache_mem_layout": case.layout,
        "hicache_io_backend": "direct",
        "hicache_write_policy": "write_through",
        "hicache_storage_backend": case.backend,
        "hicache_storage_backend_extra_config": json.dumps({"allocator": case.allocator}),
    }
    if case.draft_model:
        said["speculative_draft_model_path"] = case.draft_model
        said["speculative_draft_model_revision"] = "1"  # there is nothing to tell it by
    stack.enter_context(get_context().override_server_args(**said))
    # Layers split over CP ranks are sent round in this group; no layer is read here.
    group = SimpleNamespace(world_size=case.cp_size, pynccl_comm=None)
    stack.enter_context(get_parallel().override(attn_cp_group=group))
    # The ranks' group would say it, and here each rank is on its own.
    place = {"get_attn_cp_rank_and_size": lambda _: (case.cp_rank, case.cp_size)}
    stack.enter_context(patch.multiple("sglang.srt.managers.cache_controller.HiCacheController", **place))
    # Else SGLang numbers the TP ranks through, and has the first CP rank alone write.
    stack.enter_context(get_flags().dp.override(enabled=case.cp_size > 1))
    kv_pool, drafts = _FAMILIES[case.model](case)
    allocator = SimpleNamespace(
        get_kvcache=lambda: kv_pool,
        device="cpu",
        size_full=SLOTS,
        page_size=case.page_size,
        swa_attn_allocator=SimpleNamespace(alloc=None, free=None),
    )
    params = SimpleNamespace(
        token_to_kv_pool_allocator=allocator,
        page_size=case.page_size,
        tp_cache_group=torch.distributed.group.WORLD if case.rendezvous else None,
        attn_cp_cache_group=None,
        attn_tp_cache_group=None,
        pp_cache_group=None,
        pp_size=1,  # each stage is on its own here: it has no group to reduce over
        mtp_draft_device_pools=drafts,
        sidecar_draft_device_pools=(),
    )
    components = {ComponentType.FULL}
    if getattr(kv_pool, "swa_kv_pool", None) is not None:
        components.add(ComponentType.SWA)
    strategy = hybrid_pool_assembler._select_strategy(kv_pool, components)
    built = strategy.build(
        cache=SimpleNamespace(components=components, evict_host=None),
        kvcache=kv_pool,
        params=params,
        server_args=None,
        load_cache_event=threading.Event(),
        storage_backend=case.backend,
        storage_backend_extra_config=case.extra_config,
        prefetch_threshold=case.page_size,
        model_name=case.model_name,
        enable_storage_metrics=case.metrics,
    )
    specs = list(built.sidecars)
    for spec, entry in _late_pools(case, built):
        built.cache_controller.register_host_pool_entry(entry)
        specs.append(spec)
    pools = {str(name): entry.host_pool for name, entry in built.host_pool_group.entry_map.items()}
    anchor = pools.pop("kv")
    sources = dict.fromkeys(pools, "")
    for spec in specs:
        sources[str(spec.pool_name)] = str(spec.indices_from_pool)
    return ModelStack(built.cache_controller, {"kv": anchor, **pools}, sources, kv_pool)


def _late_pools(case: Case, built: Any) -> list[tuple[Any, Any]]:
    """What comes after the model's own pools: `own_draft`, a draft model with pools of its own; `ropes`, the half of
    compressed rows that some GPUs keep apart.
    """
    tree = SimpleNamespace(cache_controller=built.cache_controller)
    late: list[tuple[Any, Any]] = []
    if case.model_fields.get("own_draft"):
        fields = {"layers": 2, "ratios": [0, 0]}
        draft, _ = _FAMILIES[case.model](replace(case, model_fields=fields))
        specs, entries = hybrid_pool_assembler.build_hicache_draft_sidecars(
            draft_device_pools=(draft,), tree_cache=tree
        )
        late += zip(specs, entries, strict=True)
    if case.model_fields.get("ropes"):
        kv = built.host_pool_group.get_pool(PoolName.KV)
        rows = [torch.zeros((kv.size // kv.page_size, case.page_size // 4, 64), dtype=torch.bfloat16)] * 2
        pool = DeepSeekV4PagedHostPool(
            pool_name="deepseek_v4_c4_rope",
            device_buffers=[row.view(torch.uint8).flatten(1) for row in rows],
            item_bytes=rows[0][0].nbytes,
            num_host_pages=kv.size // kv.page_size,
            slot_page_size=case.page_size,
            layout=case.layout,
            page_aligned_only=True,
        )
        entry = PoolEntry(PoolName.DEEPSEEK_V4_C4_ROPE, pool, None, lambda _: None)
        spec = SimpleNamespace(pool_name=PoolName.DEEPSEEK_V4_C4_ROPE, indices_from_pool=PoolName.KV)
        late.append((spec, entry))
    return late


def _sparse_attention(case: Case) -> tuple[Any, tuple[Any, ...]]:
    """DeepSeek V3.2, GLM. `skip`: layers that use another one's choice; `split`: over how many CP ranks; `drafts`."""
    from sglang.srt.mem_cache.dsa_cache_layer_split import LayerSplitDSATokenToKVPool
    from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool

    fields = case.model_fields
    first = fields.get("first_layer", 0)
    common = {
        "size": SLOTS,
        "page_size": case.page_size,
        "kv_lora_rank": 32,
        "dtype": torch.bfloat16,
        "qk_rope_head_dim": 16,
        "device": "cpu",
        "index_head_dim": 128,
        "enable_memory_saver": False,
        "kv_cache_dim": 48,
    }
    layers = fields.get("layers", 4)
    skip = [layer in fields.get("skip", ()) for layer in range(layers)]
    own = {"layer_num": layers, "skip_topk_layers": skip, "start_layer": first, "end_layer": first + layers}
    if "split" in fields:
        parts = {"layer_shard_rank": case.cp_rank, "layer_shard_size": fields["split"]}
        return LayerSplitDSATokenToKVPool(**common, **own, **parts), ()
    drafts = tuple(DSATokenToKVPool(**common, layer_num=1) for _ in range(fields.get("drafts", 0)))
    return DSATokenToKVPool(**common, **own), drafts


def _deepseek_v4(case: Case) -> tuple[Any, tuple[Any, ...]]:
    """`ratios`: how many tokens each layer makes one of (0: none); `sources`: which layers of ratio 1 and 2 keep theirs."""
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool

    ratios = case.model_fields.get("ratios", [0, 4, 128, 4])
    first = case.model_fields.get("first_layer", 0)
    last = case.model_fields.get("end_layer", len(ratios))
    low = [layer for layer, ratio in enumerate(ratios) if ratio in (1, 2)]
    pool = DeepSeekV4TokenToKVPool(
        max_num_reqs=4,
        swa_size=SLOTS,
        c4_size=SLOTS // 4,
        c128_size=SLOTS // 128,
        c4_state_pool_size=64,
        c128_state_pool_size=64,
        page_size=case.page_size,
        swa_page_size=case.page_size,
        dtype=torch.float8_e4m3fn,
        c4_state_dtype=torch.float32,
        c128_state_dtype=torch.float32,
        qk_nope_head_dim=448,
        qk_rope_head_dim=64,
        indexer_head_dim=128,
        layer_num=last - first,
        device="cpu",
        enable_memory_saver=False,
        compression_ratios=ratios,
        start_layer=first,
        end_layer=last,
        kv_source_layers=low,
        full_size=SLOTS,
    )
    return pool, ()


def _minimax(case: Case) -> tuple[Any, tuple[Any, ...]]:
    from sglang.srt.mem_cache.memory_pool import MiniMaxSparseKVPool

    return _minimax_pool(case, MiniMaxSparseKVPool, dense=1, head_dim=16), ()


def _minimax_nvfp4(case: Case) -> tuple[Any, tuple[Any, ...]]:
    from sglang.srt.mem_cache.minimax_m3_nvfp4_pool import MiniMaxM3Nvfp4KVPool

    return _minimax_pool(case, MiniMaxM3Nvfp4KVPool, dense=0, head_dim=128), ()


def _minimax_pool(case: Case, pool_class: type, *, dense: int, head_dim: int) -> Any:
    layers = list(range(case.model_fields.get("layers", 3)))
    return pool_class(
        size=SLOTS,
        page_size=case.page_size,
        dtype=torch.bfloat16,
        head_num=case.heads,
        head_dim=head_dim,
        idx_head_dim=128,
        dense_layer_ids=layers[:dense],
        sparse_layer_ids=layers[dense:],
        disable_value_sparse_layer_ids=layers[dense:],
        device="cpu",
        start_layer=0,
        end_layer=len(layers),
    )


_FAMILIES: dict[str, Callable[[Case], tuple[Any, tuple[Any, ...]]]] = {
    "dsa": _sparse_attention,
    "deepseek_v4": _deepseek_v4,
    "minimax": _minimax,
    "minimax_nvfp4": _minimax_nvfp4,
}
