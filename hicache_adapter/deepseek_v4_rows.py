"""In which of its formats SGLang keeps DeepSeek V4's rows: settings choose it, and rows of different formats can have the
same size.
"""

import importlib
from typing import Any

from kvstore_client.errors import ConfigError

_POOL_MODULE = "sglang.srt.mem_cache.deepseek_v4_memory_pool"
_UNIFIED_MODULE = "sglang.srt.layers.attention.dsv4.unified_kv_gate"


def row_formats() -> list[str]:
    """What decides about the bytes of a row, each as text. ConfigError where this SGLang doesn't say; the same on every
    rank.
    """
    try:
        pools = importlib.import_module(_POOL_MODULE)
        unified = importlib.import_module(_UNIFIED_MODULE)
        kernel = importlib.import_module("sglang.srt.runtime_context").get_exec().kernel
        environment = importlib.import_module("sglang.srt.environ").envs
        main, compressed = pools.select_dsv4_kv_layout()
        formats: dict[str, Any] = {
            "format": getattr(main, "value", main),
            "compressed": compressed or "auto",
            "uniform": kernel.dsv4_attn_backend == "trtllm",
            "unified": unified.is_unified_kv_triton(),
            "unified fp8": unified.is_unified_kv_fp8(),
            "fp4 index": bool(kernel.enable_deepseek_v4_fp4_indexer),
            "page-8 index": bool(environment.SGLANG_HIP_DSV41_INDEX_K_PAGE8.get()),
            "online": bool(pools.ONLINE_C128),
        }
    except Exception as error:
        raise ConfigError(
            "hicache-storage-backend",
            f"this SGLang does not say in which format it keeps DeepSeek V4's rows: {error!r}",
        ) from error
    return [f"{name}:{value}" for name, value in formats.items() if value is not False]
