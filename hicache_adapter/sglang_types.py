"""SGLang's own types that its versions keep in different places, or lack."""

import functools
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
    metrics = _type_of(_METRICS_MODULES, "StorageMetrics")
    try:
        return None if metrics is None else metrics()
    except Exception:
        return None


def pool_transfer_result(report: HitReport) -> Any:
    """PoolTransferResult of a storage query; the report itself where this SGLang has none (0.5.9 and older), which then
    never asks.
    """
    result_type = _type_of(("sglang.srt.mem_cache.hicache_storage",), "PoolTransferResult")
    if result_type is None:
        return report
    result = result_type(report.hit_pages, report.pool_pages)
    if hasattr(result, "restorable_prefix_pages"):  # 0.5.20 and newer
        result.restorable_prefix_pages = report.restorable
    return result


@functools.cache
def _type_of(module_names: tuple[str, ...], name: str) -> Any:
    """The type, from the first of the modules that has it, or None. What is not there is looked for once: a failing import
    takes milliseconds each time.
    """
    for module_name in module_names:
        try:
            return getattr(importlib.import_module(module_name), name)
        except Exception:
            continue
    return None


def anchor_pool(host_pool: Any) -> Any:
    """The pool of the KV pages. Some hybrid controllers (0.5.13) register the group of all pools in its place."""
    anchor = getattr(host_pool, "anchor_entry", None)
    return host_pool if anchor is None else anchor.host_pool


def pool_name(name: Any) -> str:
    """A pool's name as plain text: SGLang passes an enum whose members grow with every release."""
    return str(getattr(name, "value", name))


def hit_policy_name(transfer: Any) -> str:
    """The transfer's hit policy as plain text; SGLang's default where it has none."""
    policy = getattr(transfer, "hit_policy", ALL_PAGES)
    return str(getattr(policy, "value", policy))
