"""SGLang's own types that its versions keep in different places, or lack."""

import importlib
from typing import Any

from hicache_adapter.hit_policy import ALL_PAGES, HitReport

KV_POOL = "kv"
STATE_POOL = "mamba"
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


def pool_transfer_result(report: HitReport) -> Any:
    """PoolTransferResult of a storage query."""
    from sglang.srt.mem_cache.hicache_storage import PoolTransferResult

    result = PoolTransferResult(report.hit_pages, report.pool_pages)
    if hasattr(result, "restorable_prefix_pages"):  # 0.5.20 and newer
        result.restorable_prefix_pages = report.restorable
    return result


def pool_name(name: Any) -> str:
    """A pool's name as plain text: SGLang passes an enum whose members grow with every release."""
    return str(getattr(name, "value", name))


def hit_policy_name(transfer: Any) -> str:
    """The transfer's hit policy as plain text; SGLang's default where it has none."""
    policy = getattr(transfer, "hit_policy", ALL_PAGES)
    return str(getattr(policy, "value", policy))
