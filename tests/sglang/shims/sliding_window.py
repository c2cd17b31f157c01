"""Lets SGLang's torch_native attention read sliding-window layers from where it wrote them.

It writes their keys and values to slots of the window pool, but reads them by the slot numbers of the full pool. On a
server that has just started both pools hand out the same numbers; after pages were loaded from storage they don't, and
then the answer is wrong whatever the storage did. SGLang's GPU backends translate when they read; this does the same.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any


def translate_reads(module: ModuleType) -> None:
    """For `torch_native_backend`."""
    backend = module.TorchNativeAttnBackend
    for name in ("_run_sdpa_forward_extend", "_run_sdpa_forward_decode"):
        setattr(backend, name, _translated(getattr(backend, name)))


def _translated(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def run_on_window_slots(
        self: Any,
        query: Any,
        output: Any,
        k_cache: Any,
        v_cache: Any,
        req_to_token: Any,
        req_pool_indices: Any,
        *args: Any,
        sliding_window_size: int | None = None,
        **kwargs: Any,
    ) -> Any:
        if sliding_window_size is not None and self.use_sliding_window_kv_pool:
            import torch

            full = req_to_token[req_pool_indices.long()]
            window = self.token_to_kv_pool.translate_loc_from_full_to_swa(full.flatten().long())
            # Tokens before the window have no slot any more; the mask hides whatever is read for them.
            req_to_token = window.long().clamp_min(0).view(full.shape)
            req_pool_indices = torch.arange(len(full))
        return run(
            self,
            query,
            output,
            k_cache,
            v_cache,
            req_to_token,
            req_pool_indices,
            *args,
            sliding_window_size=sliding_window_size,
            **kwargs,
        )

    return run_on_window_slots
