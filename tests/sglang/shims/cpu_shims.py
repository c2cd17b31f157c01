"""Lets an unedited SGLang 0.5.23 run on a CPU: replaces what exists only for GPUs, when the module in
question is imported.

- torchvision: PyPI's wheel is a CUDA build; its Python part imports once the operators it refers to have a
schema.
- host pools: pinning memory needs a CUDA driver, so pools are built with pin_memory=False. And they leave none of the
10 GiB free that SGLang reserves: a test's pool has a few MiB.
- copies between the device pool and the host pool: kernels of sgl_kernel, here in torch (`host_copies`).
- short convolutions: triton kernels, here in torch (`short_convolution`).
- latent attention: torch_native has but the absorbed form, and SGLang chooses another one for it.
- disaggregation: page numbers are staged in pinned memory; on a CPU SGLang's own other way is taken.
- torch_native attention: a defect with sliding windows is mended (`sliding_window`), and a method added that
data-parallel attention calls on a CPU.

`sgl_kernel` itself is a stub in this folder. Nothing of HiCache's storage path is replaced.
"""

import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_HOSTED = "sglang.srt.mem_cache."
_HOST_POOLS = _HOSTED + "pool_host."
_ATTENTION = "sglang.srt.layers.attention."
_torchvision_library: Any = None


def install() -> None:
    """Registers the import hook. Idempotent."""
    if not any(isinstance(finder, _Hook) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Hook())


class _Hook(importlib.abc.MetaPathFinder):
    """Runs an action before or after the first import of a module."""

    def __init__(self) -> None:
        self._before: dict[str, Callable[[], None]] = {"torchvision": _declare_torchvision_operators}
        self._after: dict[str, Callable[[ModuleType], None]] = {
            _HOST_POOLS + "base": _complete_base_module,
            _HOST_POOLS + "mha": _complete_pool_module,
            _HOST_POOLS + "mla": _complete_pool_module,
            _HOST_POOLS + "mamba": _complete_pool_module,
            _HOST_POOLS + "dsa": _complete_pool_module,
            _HOST_POOLS + "minimax_m3_nvfp4": _complete_pool_module,
            _HOSTED + "memory_pool_host": _complete_pool_module,
            "sglang.srt.models.deepseek_common.attention_backend_handler": _always_absorb,
            "sglang.srt.disaggregation.mooncake.conn": _send_page_numbers_unpinned,
            _ATTENTION + "mamba.causal_conv1d": _replace_convolutions,
            _ATTENTION + "torch_native_backend": _mend_torch_native,
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Wraps the loader of the modules above; leaves all others to the other finders."""
        if before := self._before.pop(name, None):
            before()
        after = self._after.pop(name, None)
        if after is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_then(module: ModuleType) -> None:
                execute(module)
                after(module)

            spec.loader.exec_module = execute_then  # type: ignore[method-assign]
        return spec


def _declare_torchvision_operators() -> None:
    import torch

    global _torchvision_library
    _torchvision_library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        _torchvision_library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _mend_torch_native(module: ModuleType) -> None:
    import sliding_window

    sliding_window.translate_reads(module)
    # Padding rows of data-parallel attention look at one token.
    module.TorchNativeAttnBackend.get_cpu_graph_seq_len_fill_value = lambda _: 1  # type: ignore[attr-defined]


def _replace_convolutions(module: ModuleType) -> None:
    import short_convolution

    short_convolution.replace_kernels(module)


def _always_absorb(module: ModuleType) -> None:
    def absorbed(attention: Any, batch: Any) -> Any:
        return module.AttnForwardMethod.MLA

    module.AttentionBackendRegistry.register("torch_native", absorbed)


def _send_page_numbers_unpinned(module: ModuleType) -> None:
    module.MooncakeKVSender.supports_host_tensor_indices = False  # type: ignore[attr-defined]


def _never_pin(pool_class: type) -> None:
    build = pool_class.__init__
    signature = inspect.signature(build)

    @functools.wraps(build)
    def build_unpinned(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.arguments["pin_memory"] = False
        build(*bound.args, **bound.kwargs)

    pool_class.__init__ = build_unpinned  # type: ignore[misc]


def _complete_base_module(module: ModuleType) -> None:
    _never_pin(module.HostKVCache)
    module.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0  # type: ignore[attr-defined]


def _complete_pool_module(module: ModuleType) -> None:
    import host_copies

    for name in host_copies.__all__:
        if not hasattr(module, name):
            setattr(module, name, getattr(host_copies, name))
    for item in list(vars(module).values()):
        own = isinstance(item, type) and item.__module__ == module.__name__ and "__init__" in vars(item)
        if own and "pin_memory" in inspect.signature(item.__init__).parameters:
            _never_pin(item)
