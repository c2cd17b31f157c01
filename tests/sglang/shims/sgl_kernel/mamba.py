"""Names that SGLang's linear-attention modules import on a CPU; LFM2 calls none of them."""

from typing import Any


def __getattr__(name: str) -> Any:
    if not name.endswith("_cpu"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> None:
        raise RuntimeError(f"sgl_kernel.mamba.{name} is not available in the CPU shims")

    return missing
