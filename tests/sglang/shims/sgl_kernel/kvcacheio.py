"""Copies between the device pool and the host pool, which host pools up to 0.5.13 import by name."""

from typing import Any


def __getattr__(name: str) -> Any:
    if not name.startswith("transfer_kv_"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> None:
        raise RuntimeError(f"sgl_kernel.kvcacheio.{name} is not available in the CPU shims")

    return missing
