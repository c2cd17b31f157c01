"""What SGLang tells about the model it serves, beyond what a storage backend is handed. Every version
keeps it elsewhere.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hicache_adapter.checkpoints import Checkpoint, adapters_fingerprint
from hicache_adapter.kv_formats import checkpoint_kv_format, kv_format, kv_format_told
from hicache_adapter.weights_fingerprint import UnknownWeightsError, content_fingerprint

_FP8_KERNELS = ("sglang.kernels.ops.quantization.fp8_kernel", "sglang.srt.layers.quantization.fp8_kernel")
# Ways to quantize weights while they are loaded, beside --quantization.
_ON_THE_FLY = ("torchao_config", "modelopt_quant", "rl_quant_profile")


@dataclass(frozen=True)
class ModelFacts:
    """Texts; empty where this SGLang does not say, or there is none."""

    kv_cache_dtype: str = ""
    """What the KV cache's elements mean, where the pool's dtype does not say."""
    revision: str = ""
    quantization: str = ""
    model_overrides: str = ""
    draft_model: str = ""
    draft_kv_cache_dtype: str = ""
    accelerator: str = ""
    """"hip" where fp8 means other formats than on CUDA."""
    weights: str = ""
    """Fingerprint of the weights."""
    dummy_weights: str = ""
    """Which ones, where weights are made up instead."""
    kv_scales: str = ""
    """Fingerprint of the file of scales for an fp8 KV cache."""
    adapters: str = ""
    """Fingerprint of the LoRA adapters that the engine starts with."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Field -> why it can't be told, though there is something to tell."""

    def of_draft(self) -> "ModelFacts":
        """Those of the draft model's own pool."""
        return replace(self, kv_cache_dtype=self.draft_kv_cache_dtype or self.kv_cache_dtype)


def read_model_facts() -> ModelFacts:
    """Asks the running SGLang, and looks at its checkpoint: up to seconds, so once for an engine. Never raises: outside of
    a server there is nothing to know.
    """
    model, spec = _settings("model"), _settings("spec")
    unknown: dict[str, str] = {}
    checkpoint = _checkpoint(model, "model_path", "revision", "load_format")
    accelerator = _accelerator()
    overrides = _text(model, "json_model_override_args")
    quantization = [_text(model, "quantization")]
    quantization += [f"{name}={value}" for name in _ON_THE_FLY if (value := _text(model, name))]
    if model is None and "sglang.srt.managers.scheduler" in sys.modules:
        unknown["weights"] = "this SGLang does not say which checkpoint it serves"

    def told(field: str, tell: Callable[[], str]) -> str:
        try:
            return tell()
        except UnknownWeightsError as error:
            unknown[field] = str(error)
            return ""

    scales = _text(model, "quantization_param_path")
    return ModelFacts(
        kv_cache_dtype=_kv_cache_dtype(_text(model, "kv_cache_dtype"), checkpoint, accelerator),
        revision=checkpoint.revision,
        quantization="+".join(filter(None, quantization)),
        model_overrides="" if overrides == "{}" else overrides,
        draft_model=told("draft_model", lambda: _draft_model(spec, checkpoint)),
        draft_kv_cache_dtype=_draft_kv_cache_dtype(spec, checkpoint, accelerator),
        accelerator=accelerator,
        weights=told("weights", lambda: _weights(checkpoint)),
        dummy_weights=told("weights", checkpoint.weights) if checkpoint.is_dummy else "",
        kv_scales=told("kv_scales", lambda: content_fingerprint(Path(scales)) if scales else ""),
        adapters=told("adapters", lambda: adapters_fingerprint(lora_adapters(), checkpoint.download_dir)),
        unknown=unknown,
    )


def lora_adapters() -> Mapping[str, str]:
    """Name -> path of the LoRA adapters that the engine starts with; none where LoRA is off."""
    settings = _settings("lora")
    if getattr(settings, "enable_lora", None) is False:
        return {}
    given = getattr(settings, "lora_paths", None) or ()
    if isinstance(given, Mapping):
        return {str(name): str(path) for name, path in given.items()}
    return dict(_named_adapter(item) for item in given)


def _named_adapter(item: Any) -> tuple[str, str]:
    if isinstance(item, str):
        name, _, path = item.partition("=")
        return name, path or name
    if isinstance(item, Mapping):
        return str(item.get("lora_name")), str(item.get("lora_path"))
    return str(getattr(item, "lora_name", "")), str(getattr(item, "lora_path", ""))


def lora_is_on() -> bool:
    """Whether requests may name a LoRA adapter."""
    settings = _settings("lora")
    on = getattr(settings, "enable_lora", None)
    return bool(getattr(settings, "lora_paths", None)) if on is None else bool(on)


def _weights(checkpoint: Checkpoint) -> str:
    if checkpoint.is_none or checkpoint.is_dummy or checkpoint.has_commit:
        return ""
    return checkpoint.weights()


def _draft_model(spec: Any, target: Checkpoint) -> str:
    """By content, so that equal drafts under other paths are one; by path and revision where that can't be told."""
    draft = _draft_checkpoint(spec, target)
    if draft.is_none:
        return ""
    named = f"{draft.path}@{draft.revision}" if draft.revision else ""
    if draft.has_commit:
        return _with_quantization(spec, named)
    try:
        return _with_quantization(spec, draft.weights())
    except UnknownWeightsError:
        if not named:
            raise
        return named


def _with_quantization(spec: Any, draft: str) -> str:
    quantization = _text(spec, "speculative_draft_model_quantization")
    return f"{draft} {quantization}" if quantization else draft


def _draft_checkpoint(spec: Any, target: Checkpoint) -> Checkpoint:
    draft = _checkpoint(
        spec,
        "speculative_draft_model_path",
        "speculative_draft_model_revision",
        "speculative_draft_load_format",
    )
    told = _text(spec, "speculative_draft_load_format")
    return draft._replace(load_format=told or target.load_format, download_dir=target.download_dir)


def _checkpoint(settings: Any, path: str, revision: str, load_format: str) -> Checkpoint:
    return Checkpoint(
        _text(settings, path),
        _text(settings, revision),
        _text(settings, "download_dir"),
        _text(settings, load_format) or "auto",
    )


def _kv_cache_dtype(told: str, checkpoint: Checkpoint, accelerator: str) -> str:
    if not told and not checkpoint.is_none:
        told = checkpoint_kv_format(checkpoint.descriptions())
    return kv_format_told(told, accelerator=accelerator, native_fp8=_native_fp8() if accelerator else "")


def _draft_kv_cache_dtype(spec: Any, target: Checkpoint, accelerator: str) -> str:
    if getattr(spec, "speculative_draft_kv_cache_dtype", None) is None:
        return ""
    told = _text(spec, "speculative_draft_kv_cache_dtype")
    return _kv_cache_dtype(told, _draft_checkpoint(spec, target), accelerator)


def _native_fp8() -> str:
    for name in _FP8_KERNELS:
        try:
            return kv_format(importlib.import_module(name).fp8_dtype)
        except Exception:
            continue
    return ""


def _accelerator() -> str:
    torch_version = getattr(sys.modules.get("torch"), "version", None)
    return "hip" if getattr(torch_version, "hip", None) else ""


def _settings(group: str) -> Any:
    """The object that holds the group's settings: the runtime context (newer), the global server args
    (older), or None.
    """
    for module_name, getter in (
        ("sglang.srt.runtime_context", f"get_{group}"),
        ("sglang.srt.server_args", "get_global_server_args"),
    ):
        try:
            return getattr(importlib.import_module(module_name), getter)()
        except Exception:
            continue
    return None


def _text(settings: Any, name: str) -> str:
    try:
        value = getattr(settings, name, None)
    except Exception:
        return ""
    return "" if value is None or value == "auto" else str(getattr(value, "value", value))
