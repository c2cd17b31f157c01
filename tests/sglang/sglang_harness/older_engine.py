"""Device pool, host pool and HiCache controller of an SGLang older than the installed one, on a CPU.

Everything is that version's own code: what differs from version to version is only how it is built and how the
scheduler's part is done. Versions up to 0.5.13 take the host pages of a prefetch beforehand, later ones say first
how many pages were found; from 0.5.20 on a queue tells when they are loaded.
"""

import importlib
import inspect
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from sglang_harness.case import Case
from sglang_harness.pool_pages import fill_pages, page_bytes, wipe_pool
from sglang_harness.prefetched import Prefetched

POLL_S = 0.01


class OlderEngine:
    """One rank with KV pages only. A context manager; detaches where this version can."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.side_host_pools: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self._stack = ExitStack()
        try:
            _ranks(self._stack, case)
            self.device_pool = _device_pool(case)
            self.host_pool = _host_pool(case, self.device_pool)
            self.controller = _controller(case, self.device_pool, self.host_pool)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> "OlderEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Detaches the storage backend, as a server does when it stops. Before 0.5.9 a server never did: there the
        controller's threads end, and the backend stays as it is.
        """
        try:
            if hasattr(self.controller, "detach_storage_backend"):
                self.controller.detach_storage_backend()
            else:
                self.controller.stop_event.set()
        finally:
            self._stack.close()

    @property
    def backend(self) -> Any:
        """The storage backend that SGLang has built."""
        return self.controller.storage_backend

    def fill(self, host_indices: Any, seed: int) -> None:
        """Reproducible bytes into the pages."""
        fill_pages(self.host_pool, host_indices, seed)

    def page_bytes(self, host_indices: Any) -> list[bytes]:
        """The bytes of each page."""
        return page_bytes(self.host_pool, host_indices)

    def wipe(self) -> None:
        """Zeroes the host pool."""
        wipe_pool(self.host_pool)

    def backup(
        self, host_indices: Any, tokens: list[int], timeout_s: float = 20.0, **_: Any
    ) -> tuple[list[str], int]:
        """Writes pages to the storage backend; (their hashes, tokens that SGLang counts as stored)."""
        hashes = page_hashes(tokens, self.case.page_size)
        operation_id = self.controller.write_storage(host_indices, tokens, hash_value=hashes)
        ends_at = time.monotonic() + timeout_s
        while (left_s := ends_at - time.monotonic()) > 0:
            operation = self.controller.ack_backup_queue.get(timeout=left_s)
            if operation.id == operation_id:
                return hashes, operation.completed_tokens
        raise TimeoutError("no backup ack")

    def prefetch(self, tokens: list[int], timeout_s: float = 20.0) -> Prefetched:
        """Asks the storage backend for a prompt and loads what it has."""
        if "host_indices" in inspect.signature(self.controller.prefetch).parameters:
            return self._prefetch_into(tokens, timeout_s)
        controller = self.controller
        operation = controller.prefetch(self._request(), tokens)
        if controller.prefetch_hit_queue.get(timeout=timeout_s) is not operation:
            raise AssertionError("another request's hit came back")
        hit = operation.storage_hit_count
        if hit < controller.prefetch_threshold:
            return Prefetched(hit, 0, None)
        operation.host_indices = self.host_pool.alloc(hit)
        got = Prefetched(hit, 0, operation.host_indices)
        controller.prefetch_buffer.put(operation)
        if hasattr(controller, "ack_prefetch_queue"):
            while True:
                ack = controller.ack_prefetch_queue.get(timeout=timeout_s)
                if ack.completed_tokens is not None:
                    got.completed_tokens = ack.completed_tokens
                if ack.completed_req:
                    return got
        got.completed_tokens = self._completed(operation, timeout_s)
        return got

    def _request(self) -> Any:
        """What names a request: a text, or since 0.5.20 for the hybrid controller a handle."""
        if "handle" not in inspect.signature(self.controller.prefetch).parameters:
            return "request"
        from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle

        return CacheRequestHandle("request", 1)

    def _prefetch_into(self, tokens: list[int], timeout_s: float) -> Prefetched:
        """Up to 0.5.13: into pages that are there before anything is known. A miss names the request in a queue."""
        controller = self.controller
        host_indices = self.host_pool.alloc(len(tokens))
        operation = controller.prefetch("request", host_indices, tokens)
        revoked = controller.prefetch_revoke_queue
        _wait(lambda: operation.hash_value or not revoked.empty(), "the storage query", timeout_s)
        hit = len(operation.hash_value) * self.case.page_size
        if not hit:
            revoked.get()
            return Prefetched(0, 0, None)
        return Prefetched(hit, self._completed(operation, timeout_s), host_indices[:hit])

    def _completed(self, operation: Any, timeout_s: float) -> int:
        """Waits as SGLang's tree does: until all is loaded, or the controller has given up."""
        wanted = len(operation.hash_value) * self.case.page_size

        def is_over() -> bool:
            return operation.completed_tokens == wanted or operation.is_terminated()

        _wait(is_over, "the pages", timeout_s)
        return int(operation.completed_tokens)


def page_hashes(tokens: list[int], page_size: int) -> list[str]:
    """By this version's own hash function."""
    hashes: list[str] = []
    for start in range(0, len(tokens), page_size):
        hashes.append(_hash_function()(tokens[start : start + page_size], hashes[-1] if hashes else None))
    return hashes


def _hash_function() -> Callable[..., str]:
    """get_hash_str; it has moved once, and takes a page or a list of pages."""
    for module_name in ("sglang.srt.mem_cache.utils", "sglang.srt.mem_cache.hicache_storage"):
        module = importlib.import_module(module_name)
        for name in ("get_storage_hash_str", "get_hash_str"):
            function = getattr(module, name, None)
            if function is not None and "page_size" in inspect.signature(function).parameters:
                return lambda page, prior: function(page, prior, page_size=len(page))[0]
            if function is not None:
                return function
    raise LookupError("this SGLang has no hash function for pages")


def _wait(condition: Callable[[], Any], what: str, timeout_s: float) -> None:
    ends_at = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > ends_at:
            raise TimeoutError(f"{what} did not come in {timeout_s} s")
        time.sleep(POLL_S)


def _ranks(stack: ExitStack, case: Case) -> None:
    """Tells SGLang that this is the only rank: in its runtime context, or before there was one by its real groups."""
    try:
        from sglang.srt.runtime_context import get_parallel
    except ImportError:
        _single_rank_groups()
        return
    ranks = {
        f"{group}_{what}": int(what == "size")
        for group in ("tp", "attn_tp", "pp", "attn_cp", "attn_dp")
        for what in ("rank", "size")
    }
    stack.enter_context(get_parallel().override(**ranks))


def _single_rank_groups() -> None:
    """Once a process: SGLang's own groups over gloo."""
    from sglang.srt.distributed import parallel_state

    if parallel_state.model_parallel_is_initialized():
        return
    rendezvous = tempfile.NamedTemporaryFile(prefix="sglang-rank-", delete=False)  # noqa: SIM115
    parallel_state.init_distributed_environment(
        world_size=1,
        rank=0,
        local_rank=0,
        distributed_init_method=f"file://{rendezvous.name}",
        backend="gloo",
    )
    parallel_state.initialize_model_parallel()


def _device_pool(case: Case) -> Any:
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

    common = {
        "size": max(512, 2 * case.pages * case.page_size),
        "page_size": case.page_size,
        "dtype": getattr(torch, case.dtype),
        "layer_num": case.layers,
        "device": "cpu",
        "enable_memory_saver": False,
    }
    if case.kind == "mla":
        return MLATokenToKVPool(kv_lora_rank=2 * case.head_dim, qk_rope_head_dim=case.head_dim, **common)
    return MHATokenToKVPool(head_num=case.heads, head_dim=case.head_dim, **common)


def _host_pool(case: Case, device_pool: Any) -> Any:
    class_name = "MLATokenToKVPoolHost" if case.kind == "mla" else "MHATokenToKVPoolHost"
    build = getattr(_host_pool_module(case.kind), class_name)
    return build(device_pool, 1.5, 0, case.page_size, case.layout, pin_memory=False, device="cpu")


def _host_pool_module(name: str) -> Any:
    """One file up to 0.5.13, then taken apart bit by bit."""
    try:
        return importlib.import_module(f"sglang.srt.mem_cache.pool_host.{name}")
    except ModuleNotFoundError:
        return importlib.import_module("sglang.srt.mem_cache.memory_pool_host")


def _controller(case: Case, device_pool: Any, host_pool: Any) -> Any:
    from sglang.srt.managers.cache_controller import HiCacheController

    arguments = {
        "token_to_kv_pool_allocator": _allocator(case, device_pool),
        "mem_pool_host": host_pool,
        "page_size": case.page_size,
        "tp_group": None,
        "load_cache_event": threading.Event(),
        "write_policy": "write_through",
        "io_backend": "direct",
        "storage_backend": case.backend,
        "model_name": case.model_name,
        "prefetch_threshold": case.page_size,
        "storage_backend_extra_config": case.extra_config,
        "enable_storage_metrics": case.metrics,
    }
    build: Any = HiCacheController
    if case.controller == "hybrid":
        from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController

        build = HybridCacheController
        arguments["mem_pool_host"] = _group_of_one(case, device_pool, host_pool)
        arguments |= {"transfer_layer_num": case.layers, "transfer_layer_id_max": case.layers}
    known = inspect.signature(build).parameters
    return build(**{name: value for name, value in arguments.items() if name in known})


def _group_of_one(case: Case, device_pool: Any, host_pool: Any) -> Any:
    """What the hybrid controller takes: the KV pool and no other."""
    from sglang.srt.mem_cache.hicache_storage import PoolName

    pools = _host_pool_module("group")
    entry = pools.PoolEntry(
        name=PoolName.KV,
        host_pool=host_pool,
        device_pool=device_pool,
        layer_mapper=lambda layer: layer if 0 <= layer < case.layers else None,
        is_primary_index_anchor=True,
    )
    return pools.HostPoolGroup([entry])


def _allocator(case: Case, device_pool: Any) -> Any:
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

    return PagedTokenToKVPoolAllocator(
        size=device_pool.size,
        page_size=case.page_size,
        dtype=device_pool.dtype,
        device="cpu",
        kvcache=device_pool,
        need_sort=False,
    )
