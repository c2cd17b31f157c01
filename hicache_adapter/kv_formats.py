"""What the elements of a KV cache mean. Pools keep 8-bit floats as plain bytes, and one kind read as another is garbage
of the right size.
"""

from collections.abc import Iterable, Mapping
from typing import Any

_ALIASES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fnuz": "fp8_e4m3fnuz",
    "float8_e5m2": "fp8_e5m2",
    "float8_e5m2fnuz": "fp8_e5m2fnuz",
    "fp8": "fp8_e4m3",
}
_OPAQUE = ("uint8", "int8")


def kv_format(name: Any) -> str:
    """One name for each format, whatever torch, SGLang or an operator calls it."""
    text = str(name).removeprefix("torch.")
    return _ALIASES.get(text, text)


def is_opaque(store_dtype: str) -> bool:
    """Whether the pool's dtype does not say what its bytes mean."""
    return store_dtype in _OPAQUE


def kv_format_told(told: str, *, accelerator: str, native_fp8: str) -> str:
    """The format that SGLang makes of `--kv-cache-dtype`; empty where that can't be told. On HIP every fp8 is the one that
    the hardware has (`native_fp8`): e4m3fnuz on MI300, e4m3fn on later ones.
    """
    named = kv_format(told)
    if not accelerator:
        return named
    return native_fp8 if named.startswith("fp8_") else f"{named}/{accelerator}" if named else ""


def checkpoint_kv_format(descriptions: Iterable[Mapping[str, Any]]) -> str:
    """What SGLang makes of `--kv-cache-dtype auto` where a checkpoint comes with an fp8 KV cache; else empty."""
    for said in descriptions:
        for section in _quantizations(said):
            algorithm, scheme = section.get("kv_cache_quant_algo"), section.get("kv_cache_scheme")
            if isinstance(algorithm, str) and algorithm.upper() == "FP8":
                return "fp8_e4m3"
            if isinstance(scheme, Mapping) and (scheme.get("type"), scheme.get("num_bits")) == ("float", 8):
                return "fp8_e4m3"
    return ""


def _quantizations(said: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    nested = said.get("text_config")
    for owner in (said, nested if isinstance(nested, Mapping) else {}):
        for name in ("quantization_config", "compression_config", "quantization"):
            section = owner.get(name)
            if isinstance(section, Mapping):
                yield section
    yield said
