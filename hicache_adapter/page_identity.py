"""From SGLang's configuration and host pool to our identity: which pages may be shared."""

from dataclasses import replace
from typing import Any

from hicache_adapter.byte_order import CANONICAL, stored_order
from hicache_adapter.config import AdapterConfig
from hicache_adapter.kv_formats import is_opaque, kv_format
from hicache_adapter.model_facts import ModelFacts
from hicache_adapter.rank_coordinates import RankCoordinates
from kvstore_client.errors import ConfigError
from kvstore_client.identity import Identity

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")

_WEIGHTS_REMEDY = 'put "revision" into the extra config, and change it with the weights'
_DRAFT_REMEDY = "give --speculative-draft-model-revision"
_KV_DTYPE_REMEDY = 'put "kv_dtype": "fp8_e4m3" (or what --kv-cache-dtype is) into the extra config'
_WORDS = {
    "weights": "which weights are served can't be told",
    "adapters": "which LoRA adapters are served can't be told",
    "draft_model": "which draft model is served can't be told",
    "kv_scales": "the scales of the KV cache can't be told",
}


class UnusableRankError(Exception):
    """This rank can't tell what its pages are, though other ranks may: it must leave the store alone, quietly
    enough that they don't wait for it.
    """


def is_replicated(rank: RankCoordinates, pool: Any) -> bool:
    """Whether all TP ranks hold the same bytes of the KV pool (MLA)."""
    return rank.is_mla_model or hasattr(pool, "kv_lora_rank")


def page_identity(
    rank: RankCoordinates, pool: Any, config: AdapterConfig, facts: ModelFacts, *, flat_pages: bool
) -> Identity:
    """The identity of the KV pool's pages. UnusableRankError where it can't be told.

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
        kv_dtype=_kv_dtype(pool, store_dtype, config, facts),
        kv_scales=_told(facts, "kv_scales") if is_opaque(store_dtype) else "",
        store_dtype=store_dtype,
        pool_class=type(pool).__name__,
        byte_order=stored_order(pool.layout, replicated=replicated, canonical=canonical),
        device_layout=device_layout,
        page_size=int(pool.page_size),
        draft_layer_count=draft_layers,
        draft_model=draft_model_of(facts) if draft_layers else "",
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
    """The fields of an identity that say which model computed the bytes, and for whom. UnusableRankError where the weights
    can't be told.
    """
    weights, adapters = facts.dummy_weights, facts.adapters
    if not config.revision:  # what the operator says of the weights goes before what they look like
        weights = weights or _told(facts, "weights", _WEIGHTS_REMEDY)
        adapters = _told(facts, "adapters", _WEIGHTS_REMEDY)
    return {
        "model": rank.model_name,
        "revision": config.revision or facts.revision,
        "weights": weights,
        "adapters": adapters,
        "quantization": facts.quantization,
        "model_overrides": facts.model_overrides,
        "tag": config.tag,
    }


def draft_model_of(facts: ModelFacts) -> str:
    """Which draft model is served; empty where SGLang names none. UnusableRankError where it can't be told."""
    return _told(facts, "draft_model", _DRAFT_REMEDY)


def _told(facts: ModelFacts, field: str, remedy: str = "") -> str:
    """A fact. UnusableRankError where there is one, and nobody knows it."""
    if (why := facts.unknown.get(field)) is not None:
        raise UnusableRankError(f"{_WORDS[field]}: {why}{remedy and f'; {remedy}'}")
    return str(getattr(facts, field))


def _kv_dtype(pool: Any, store_dtype: str, config: AdapterConfig, facts: ModelFacts) -> str:
    """What the bytes mean. fp8 pools store uint8, and e4m3 read as e5m2 is garbage of the right size."""
    if config.kv_dtype:
        return kv_format(config.kv_dtype)
    if not is_opaque(store_dtype):
        return kv_format(store_dtype)
    told = facts.kv_cache_dtype
    # A host pool of 0.5.20 or older holds the device's pool itself, which knows better.
    on_device = kv_format(getattr(getattr(pool, "device_pool", None), "dtype", store_dtype))
    if not is_opaque(on_device) and (not told or told.startswith("fp8_")):
        return on_device
    if not told:
        raise UnusableRankError(
            f"SGLang stores the KV cache as {store_dtype} and does not say what it means; {_KV_DTYPE_REMEDY}"
        )
    return told
