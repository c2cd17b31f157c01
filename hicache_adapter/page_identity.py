"""From SGLang's configuration and host pool to our identity: which pages may be shared."""

from dataclasses import replace
from typing import Any

from hicache_adapter.byte_order import CANONICAL, stored_order
from hicache_adapter.config import AdapterConfig
from hicache_adapter.model_facts import ModelFacts
from hicache_adapter.rank_coordinates import RankCoordinates
from kvstore_client.errors import ConfigError
from kvstore_client.identity import Identity

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")

_DTYPE_ALIASES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "fp8": "fp8_e4m3",
}


def is_replicated(rank: RankCoordinates, pool: Any) -> bool:
    """Whether all TP ranks hold the same bytes of the KV pool (MLA)."""
    return rank.is_mla_model or hasattr(pool, "kv_lora_rank")


def page_identity(
    rank: RankCoordinates, pool: Any, config: AdapterConfig, facts: ModelFacts, *, flat_pages: bool
) -> Identity:
    """The identity of the KV pool's pages. ConfigError where it can't be told; the same on every rank.

    `flat_pages`: the bytes come through get_data_page (interface v0), whose order differs from the pool's own
    for layer_first MHA.
    """
    replicated = is_replicated(rank, pool)
    identity = attention_identity(rank, pool, config, facts, replicated=replicated)
    canonical = config.byte_order == CANONICAL
    order = stored_order(pool.layout, replicated=replicated, canonical=canonical, flat_pages=flat_pages)
    return replace(identity, byte_order=order)


def attention_identity(
    rank: RankCoordinates, pool: Any, config: AdapterConfig, facts: ModelFacts, *, replicated: bool
) -> Identity:
    """The identity of a pool of attention pages. ConfigError where it can't be told; the same on every rank."""
    canonical, device_layout = config.byte_order == CANONICAL, _device_layout(pool)
    if canonical and device_layout:
        raise ConfigError(
            "byte_order",
            f"{CANONICAL} needs pages of tokens, heads and elements in that order, and the device's layout here is "
            f"{device_layout!r}; use byte_order native",
        )
    store_dtype = str(pool.dtype).removeprefix("torch.")
    if replicated:
        row_dim = getattr(pool, "kv_cache_dim", None) or pool.kv_lora_rank + pool.qk_rope_head_dim
        geometry: dict[str, Any] = {"row_dim": int(row_dim)}
    else:
        heads = int(pool.head_num) * rank.tp_size
        head_dim = int(pool.head_dim)
        v_head_dim = int(getattr(pool, "v_head_dim", None) or head_dim)
        geometry = {"head_count": heads, "head_dim": head_dim, "v_head_dim": v_head_dim}
    draft_layers = int(pool.layer_num) - int(getattr(pool, "target_layer_num", None) or pool.layer_num)
    return Identity(
        kv_dtype=_logical_dtype(store_dtype, config, facts),
        store_dtype=store_dtype,
        pool_class=type(pool).__name__,
        byte_order=stored_order(pool.layout, replicated=replicated, canonical=canonical),
        device_layout=device_layout,
        page_size=int(pool.page_size),
        draft_layer_count=draft_layers,
        draft_model=facts.draft_model if draft_layers else "",
        **model_fields(rank, config, facts),
        **geometry,
    )


def _device_layout(pool: Any) -> str:
    """Order of the elements within a layer of a page, which the host pool takes over from the device's pool as it
    is: "hnd", "vectorized_5d", ...; empty for the usual one, tokens x heads x width.
    """
    told = [getattr(getattr(info, "buffers", None), "layout", None) for info in _buffer_infos(pool)]
    if not any(told):  # a host pool of 0.5.20 or older holds the device's pool itself
        told = [getattr(getattr(pool, "device_pool", None), "kv_cache_layout", None)]
    names = dict.fromkeys(str(getattr(layout, "value", layout)) for layout in told if layout)
    return "" if list(names) == ["nhd"] else "+".join(names)


def _buffer_infos(pool: Any) -> tuple[Any, ...]:
    """What SGLang says of the device buffers behind the host pool, packed draft layers last."""
    return tuple(getattr(pool, "_buffer_infos", None) or ())


def model_fields(rank: RankCoordinates, config: AdapterConfig, facts: ModelFacts) -> dict[str, Any]:
    """The fields of an identity that say which model computed the bytes, and for whom."""
    return {
        "model": rank.model_name,
        "revision": config.revision or facts.revision,
        "quantization": facts.quantization,
        "model_overrides": facts.model_overrides,
        "tag": config.tag,
    }


def _logical_dtype(store_dtype: str, config: AdapterConfig, facts: ModelFacts) -> str:
    """What the bytes mean. fp8 pools store uint8, and e4m3 read as e5m2 is garbage of the right size."""
    if config.kv_dtype:
        return _DTYPE_ALIASES.get(config.kv_dtype, config.kv_dtype)
    if store_dtype not in ("uint8", "int8"):
        return _DTYPE_ALIASES.get(store_dtype, store_dtype)
    if not facts.kv_cache_dtype:
        raise ConfigError(
            "kv_dtype",
            f"SGLang stores the KV cache as {store_dtype} and does not say what it means; "
            'put "kv_dtype": "fp8_e4m3" (or what --kv-cache-dtype is) into the extra config',
        )
    dtype = _DTYPE_ALIASES.get(facts.kv_cache_dtype, facts.kv_cache_dtype)
    return f"{dtype}/{facts.accelerator}" if facts.accelerator else dtype
