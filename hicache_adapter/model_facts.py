"""What SGLang tells about the model it serves, beyond what a storage backend is handed. Every version
keeps it elsewhere.
"""

import importlib
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelFacts:
    """Texts; empty where this SGLang does not say."""

    kv_cache_dtype: str = ""
    revision: str = ""
    quantization: str = ""
    model_overrides: str = ""
    draft_model: str = ""
    accelerator: str = ""  # "hip" where fp8 means other formats than on CUDA


def read_model_facts() -> ModelFacts:
    """Asks the running SGLang. Never raises: outside of a server there is nothing to know."""
    model, spec = _settings("model"), _settings("spec")
    draft = _text(spec, "speculative_draft_model_path")
    draft_revision = _text(spec, "speculative_draft_model_revision")
    overrides = _text(model, "json_model_override_args")
    torch_version = getattr(sys.modules.get("torch"), "version", None)
    return ModelFacts(
        kv_cache_dtype=_text(model, "kv_cache_dtype"),
        revision=_text(model, "revision"),
        quantization=_text(model, "quantization"),
        model_overrides="" if overrides == "{}" else overrides,
        draft_model=f"{draft}@{draft_revision}" if draft and draft_revision else draft,
        accelerator="hip" if getattr(torch_version, "hip", None) else "",
    )


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
    return "" if value is None or value == "auto" else str(value)
