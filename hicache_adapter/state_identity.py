"""Identity of a pool of recurrent states (Mamba, linear attention, short convolution): one slot of state a key, the
model's state after the page's last token.
"""

from typing import Any

from hicache_adapter.config import AdapterConfig
from hicache_adapter.model_facts import ModelFacts
from hicache_adapter.page_identity import model_fields
from kvstore_client.errors import ConfigError
from kvstore_client.identity import Identity

_PLAIN_DTYPES = ("bfloat16", "float16", "float32", "float64")


def state_identity(storage_config: Any, pool: Any, config: AdapterConfig, facts: ModelFacts) -> Identity:
    """The identity of the pool's slots. ConfigError where it can't be told; the same on every rank.

    Shapes are of one rank's share: how heads and groups are dealt out to ranks differs from model to model, so
    states of other TP sizes are never taken for these.
    """
    if getattr(pool, "slot_state_device_tensors", ()):
        raise ConfigError(
            "hicache-storage-backend",
            f"{type(pool).__name__} keeps states beside its slots (int8 checkpoints, side states) that SGLang does "
            "not give to storage backends",
        )
    parts = [("conv", shape, pool.conv_dtype) for shape in pool.conv_state_shapes]
    if int(pool.temporal_state_elem_size) > 0:
        parts.append(("temporal", pool.temporal_state_shape, pool.temporal_dtype))
    dtypes = [_plain_dtype(dtype) for _, _, dtype in parts]
    drafts = len(getattr(pool, "mtp_draft_buffer_infos", ()))
    return Identity(
        kv_dtype="+".join(dict.fromkeys(dtypes)),
        store_dtype="+".join(dict.fromkeys(dtypes)),
        pool_class=type(pool).__name__,
        byte_order=pool.layout,
        page_size=int(pool.page_size),
        draft_layer_count=drafts,
        draft_model=facts.draft_model if drafts else "",
        state_shape=" ".join(
            [
                *(
                    f"{name}[{','.join(str(int(size)) for size in shape)}]:{dtype}"
                    for (name, shape, _), dtype in zip(parts, dtypes, strict=True)
                ),
                # Which axis comes first is up to the kernels of the device.
                f"on:{facts.accelerator or _device_type(pool)}",
            ]
        ),
        **model_fields(storage_config, config, facts),
    )


def _plain_dtype(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in _PLAIN_DTYPES:
        raise ConfigError(
            "mamba-ssm-dtype",
            f"states of {name} don't say what they mean; use one of {', '.join(_PLAIN_DTYPES)}",
        )
    return name


def _device_type(pool: Any) -> str:
    older = not hasattr(pool, "buffer_info")  # 0.5.20 and older
    states = pool.device_pool.mamba_cache if older else pool.buffer_info
    return str(states.temporal.device.type)
