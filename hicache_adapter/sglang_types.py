"""SGLang's own types that its versions keep in different places, or lack."""

import importlib
from typing import Any

KV_POOL = "kv"
_METRICS_MODULES = ("sglang.srt.observability.metrics_collector", "sglang.srt.metrics.collector")


def new_storage_metrics() -> Any:
    """An empty StorageMetrics, or None where this SGLang has none. Never raises: the scheduler calls
    this in its loop.
    """
    for module_name in _METRICS_MODULES:
        try:
            return importlib.import_module(module_name).StorageMetrics()
        except Exception:
            continue
    return None


def pool_transfer_result(kv_hit_pages: int) -> Any:
    """PoolTransferResult for a model without side pools: every prefix of the hit can be restored."""
    from sglang.srt.mem_cache.hicache_storage import PoolTransferResult

    result = PoolTransferResult(kv_hit_pages, {KV_POOL: kv_hit_pages} if kv_hit_pages else {})
    if hasattr(result, "restorable_prefix_pages"):
        result.restorable_prefix_pages = list(range(1, kv_hit_pages + 1))
    return result
