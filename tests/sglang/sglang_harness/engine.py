"""SGLang's real device pool, host pool and HiCache controller on a CPU (SGLang 0.5.23), without a server or a
GPU.

What the scheduler thread does between the controller's queues is done here, by `backup` and `prefetch`.
"""

import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import torch
from sglang.srt.mem_cache.pool_host import base as pool_host_base
from sglang.srt.runtime_context import get_context, get_parallel

from sglang_harness.case import Case
from sglang_harness.pool_pages import fill_pages, page_bytes, raw_bytes, wipe_pool
from sglang_harness.prefetched import Prefetched

GROUP_TIMEOUT_S = 30.0  # a rank that waits longer for another one fails

# SGLang leaves 10 GiB of host memory free for a real engine; these pools have a few MiB.
pool_host_base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0


class Engine:
    """One rank. A context manager; everything is released on exit."""

    def __init__(self, case: Case, side_pools: Any = None) -> None:
        """`side_pools(device_pool, host_pool) -> list[PoolEntry]` adds pools beside KV to those of the case
        (hybrid controller only).
        """
        self.case = case
        self._stack = ExitStack()
        self._requests = 0
        try:
            if case.draft_model and not case.model:
                said = {
                    "speculative_draft_model_path": case.draft_model,
                    "speculative_draft_model_revision": "1",  # there is nothing to tell it by
                }
                self._stack.enter_context(get_context().override_server_args(**said))
            self._stack.enter_context(_ranks(case))
            self._stack.enter_context(_process_group(case))
            if case.model:
                self._build_model()
                return
            self.device_pool, self.host_pool = new_pools(case)
            entries = _side_entries(case)
            entries += side_pools(self.device_pool, self.host_pool) if side_pools is not None else []
            self.side_host_pools = {entry.name.value: entry.host_pool for entry in entries}
            self.sources = {name: "kv" if case.follows_kv(name) else "" for name in case.side_pools}
            self.controller = _controller(case, self.device_pool, self.host_pool, entries)
        except BaseException:
            self._stack.close()
            raise

    def _build_model(self) -> None:
        from sglang_harness.model_stacks import build_model_stack

        built = build_model_stack(self.case, self._stack)
        self.controller, self.sources, self.device_pool = built.controller, built.sources, built.kv_pool
        self.side_host_pools = dict(built.host_pools)
        self.host_pool = self.side_host_pools.pop("kv")

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Detaches the storage backend, as a server does when it stops."""
        try:
            # A rank that left now could fail the reduction that another one is still in.
            if self.case.rendezvous:
                torch.distributed.barrier()
            if self.controller.enable_storage:
                self.controller.detach_storage_backend()
        finally:
            self._stack.close()

    @property
    def backend(self) -> Any:
        """The storage backend that SGLang has built."""
        return self.controller.storage_backend

    @property
    def has_kv_bytes(self) -> bool:
        """Whether the KV pool holds anything: DeepSeek V4's only numbers pages of side pools."""
        return self.host_pool.kv_buffer is not None

    def fill(self, host_indices: Any, seed: int) -> None:
        """Reproducible bytes into the pages."""
        if self.has_kv_bytes:
            fill_pages(self.host_pool, host_indices, seed)

    def page_bytes(self, host_indices: Any) -> list[bytes]:
        """The bytes of each page."""
        return page_bytes(self.host_pool, host_indices) if self.has_kv_bytes else []

    def head_bytes(self, host_indices: Any) -> list[list[bytes]]:
        """The bytes of each head of each page (layout page_head): K, then V."""
        pages = [slot // self.case.page_size for slot in host_indices[:: self.case.page_size].tolist()]
        pool = self.host_pool
        return [
            [
                b"".join(raw_bytes(buffer[page, head]) for buffer in (pool.k_buffer, pool.v_buffer))
                for head in range(self.case.heads)
            ]
            for page in pages
        ]

    def wipe(self) -> None:
        """Zeroes the host pools."""
        pools = [self.host_pool] if self.has_kv_bytes else []
        for pool in (*pools, *self.side_host_pools.values()):
            wipe_pool(pool)

    def backup(
        self,
        host_indices: Any,
        tokens: list[int],
        timeout_s: float = 20.0,
        *,
        last_hash: str | None = None,
        side_pages: Any = None,
    ) -> tuple[list[str], int]:
        """Writes pages to the storage backend; (their hashes, tokens that SGLang counts as stored).

        `last_hash`: of the page before them. `side_pages(hashes) -> list[PoolTransfer]`: pages of side pools.
        """
        from sglang.srt.mem_cache.utils import get_storage_hash_str

        hashes = get_storage_hash_str(tokens, last_hash, page_size=self.case.page_size)
        extra = {} if side_pages is None else {"extra_pools": side_pages(hashes)}
        operation_id = self.controller.write_storage(
            host_indices, tokens, hash_value=hashes, prefix_keys=None, **extra
        )
        ends_at = time.monotonic() + timeout_s
        while (left_s := ends_at - time.monotonic()) > 0:
            operation = self.controller.ack_backup_queue.get(timeout=left_s)
            if operation.id == operation_id:
                return hashes, operation.completed_tokens
        raise TimeoutError("no backup ack")

    def prefetch(
        self, tokens: list[int], timeout_s: float = 20.0, before_load: Callable[[], None] = lambda: None
    ) -> Prefetched:
        """Asks the storage backend for a prompt and loads what it has. `before_load`: called between the two."""
        controller = self.controller
        operation = self._start_prefetch(tokens)
        if controller.prefetch_hit_queue.get(timeout=timeout_s) is not operation:
            raise AssertionError("another request's hit came back")
        hit = operation.storage_hit_count
        got = Prefetched(hit, 0, None)
        if self.sources:
            got.restorable = operation.pool_storage_result.restorable_prefix_pages
        if hit < max(controller.prefetch_threshold, self.case.page_size):
            return got
        got.host_indices = operation.host_indices = controller.alloc_prefetch_host_buffers(operation, hit)
        if operation.host_indices is None:
            raise MemoryError("the host pool is too small for the hit")
        for transfer in getattr(operation, "pool_transfers", None) or ():
            if transfer.indices_from_pool is None:
                pool = self.side_host_pools[transfer.name.value]
                transfer.host_indices = pool.alloc(len(transfer.keys) * pool.page_size)
        before_load()
        controller.prefetch_buffer.put(operation)
        while True:
            ack = controller.ack_prefetch_queue.get(timeout=timeout_s)
            if ack.completed_tokens is not None:
                got.completed_tokens = operation.completed_tokens = ack.completed_tokens
            for name, pages in (getattr(ack, "pool_hits", None) or {}).items():
                got.side_pages[str(name)] = pages
            if ack.completed_req:
                break
        for transfer in getattr(operation, "pool_transfers", None) or ():
            from_kv = self.sources[transfer.name.value] == "kv"
            got.side_indices[transfer.name.value] = got.host_indices if from_kv else transfer.host_indices
        return got

    def _start_prefetch(self, tokens: list[int]) -> Any:
        self._requests += 1
        request = f"request-{self._requests}"
        if self.case.controller == "base":
            return self.controller.prefetch(request, tokens, None, None)
        from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
        from sglang.srt.mem_cache.radix_cache import RadixKey

        extra = {}
        if self.sources:
            from sglang_harness.side_pools import query_transfers

            extra["extra_pools"] = query_transfers(self.case, self.sources)
        handle = CacheRequestHandle(request, self._requests)
        return self.controller.prefetch(handle, RadixKey(array("q", tokens)), None, None, **extra)


def new_pools(case: Case) -> tuple[Any, Any]:
    """The case's device pool and host pool of keys and values, alone."""
    device_pool = _device_pool(case, _kv_slots(case))
    return device_pool, _host_pool(case, device_pool)


def _ranks(case: Case) -> Any:
    ranks = {
        f"{group}_{what}": int(what == "size")
        for group in ("attn_dp", "attn_dcp")
        for what in ("rank", "size")
    }
    for group, rank, size in (("pp", case.pp_rank, case.pp_size), ("attn_cp", case.cp_rank, case.cp_size)):
        ranks |= {f"{group}_rank": rank, f"{group}_size": size}
    ranks |= {"attn_tp_rank": case.tp_rank, "attn_tp_size": case.tp_size}
    whole = case.cp_size * case.tp_size
    ranks |= {"tp_rank": case.cp_rank * case.tp_size + case.tp_rank, "tp_size": whole, "moe_tp_size": whole}
    return get_parallel().override(**ranks)


@contextmanager
def _process_group(case: Case) -> Iterator[None]:
    """The ranks' gloo group, which SGLang's controllers reduce their hit counts over."""
    if not case.rendezvous:
        yield
        return
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{case.rendezvous}",
        rank=case.tp_rank,
        world_size=case.tp_size,
        timeout=timedelta(seconds=GROUP_TIMEOUT_S),
    )
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def kv_host_pool(case: Case) -> Any:
    """The host pool of the case's KV pages, without a controller or a storage backend."""
    return _host_pool(case, _device_pool(case, _kv_slots(case)))


def _kv_slots(case: Case) -> int:
    return max(512, 2 * case.pages * case.page_size)


def _side_entries(case: Case) -> list[Any]:
    if not case.side_pools:
        return []
    from sglang_harness.side_pools import side_pool_entries

    def attention_pools(side_case: Case, slots: int) -> tuple[Any, Any]:
        device_pool = _device_pool(side_case, slots)
        return device_pool, _host_pool(side_case, device_pool)

    return side_pool_entries(case, attention_pools, kv_slots=_kv_slots(case))


def _device_pool(case: Case, slots: int) -> Any:
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

    common = {
        "size": slots,
        "page_size": case.page_size,
        "dtype": getattr(torch, case.dtype),
        "layer_num": case.layers,
        "device": "cpu",
        "enable_memory_saver": False,
        "start_layer": case.first_layer,
        "end_layer": case.first_layer + case.layers,
    }
    if case.kind == "mla":
        return MLATokenToKVPool(kv_lora_rank=2 * case.head_dim, qk_rope_head_dim=case.head_dim, **common)
    v_head_dim = case.head_dim * 2 if case.kind == "mha_asymmetric" else None
    return MHATokenToKVPool(head_num=case.heads, head_dim=case.head_dim, v_head_dim=v_head_dim, **common)


def _host_pool(case: Case, device_pool: Any) -> Any:
    from sglang.srt.mem_cache.pool_host.mha import get_mha_host_pool_cls
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    info = device_pool.get_device_pool_infos()[0].buffer_info
    common = {
        "buffer_info": info,
        "host_to_device_ratio": 1.5,
        "host_size": 0,
        "page_size": case.page_size,
        "layout": case.layout,
        "pin_memory": False,
        "device": "cpu",
        "allocator_type": case.allocator,
        "device_capacity_tokens": device_pool.size,
        "start_layer": device_pool.start_layer,
        "end_layer": device_pool.end_layer,
        "host_token_capacity": None,
    }
    if case.kind == "mla":
        return MLATokenToKVPoolHost(**common, target_layer_num=device_pool.layer_num, dcp_size=1, dcp_rank=0)
    return get_mha_host_pool_cls(info)(**common)


def _controller(case: Case, device_pool: Any, host_pool: Any, side_entries: list[Any]) -> Any:
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

    allocator = PagedTokenToKVPoolAllocator(
        size=device_pool.size,
        page_size=case.page_size,
        dtype=device_pool.dtype,
        device="cpu",
        kvcache=device_pool,
        need_sort=False,
    )
    common = {
        "page_size": case.page_size,
        "tp_group": torch.distributed.group.WORLD if case.rendezvous else None,
        "load_cache_event": threading.Event(),
        "write_policy": "write_through",
        "io_backend": "direct",
        "storage_backend": case.backend,
        "model_name": case.model_name,
        "prefetch_threshold": case.page_size,
        "storage_backend_extra_config": case.extra_config,
        "enable_storage_metrics": case.metrics,
    }
    if case.controller == "base":
        from sglang.srt.managers.cache_controller import HiCacheController

        return HiCacheController(allocator, host_pool, **common)
    from sglang.srt.mem_cache.hicache_storage import PoolName
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
    from sglang.srt.mem_cache.pool_host import HostPoolGroup, PoolEntry

    entries = [
        PoolEntry(
            name=PoolName.KV,
            host_pool=host_pool,
            device_pool=device_pool,
            layer_mapper=lambda layer: layer if 0 <= layer < case.layers else None,
            is_primary_index_anchor=True,
        )
    ]
    return HybridCacheController(
        allocator, HostPoolGroup(entries + side_entries), transfer_layer_id_max=case.layers, **common
    )
