"""Stands in for SGLang's native kernels on a CPU: without their operators every layer takes its own
torch path.
"""

from types import SimpleNamespace
from typing import Any

import torch

# Looked up, and never called on a CPU, when SGLang up to 0.5.9 makes its groups.
allreduce = SimpleNamespace()

# Looked up when the linear-attention modules are imported. They have no implementation: calling one raises, and SGLang
# still sees a CPU without native kernels.
_declared = torch.library.Library("sgl_kernel", "FRAGMENT")
for _name in ("fused_sigmoid_gating_delta_rule_update_cpu", "fused_gdn_gating_cpu"):
    _declared.define(f"{_name}(Tensor x) -> Tensor")


def assign_req_to_token_pool_cpu(
    req_pool_indices: Any,
    req_to_token: Any,
    start_offset: Any,
    end_offset: Any,
    out_cache_loc: Any,
    pool_len: int,
) -> None:
    """Writes each request's new slots into its row; the one kernel that has no torch path."""
    at = 0
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for request, start, end in rows:
        req_to_token[request, start:end] = out_cache_loc[at : at + end - start].to(req_to_token.dtype)
        at += end - start


def __getattr__(name: str) -> Any:
    if not name.endswith("_cpu"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> None:
        raise RuntimeError(f"sgl_kernel.{name} is not available in the CPU shims")

    return missing
