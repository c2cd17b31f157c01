"""SGLang's short convolution kernels (triton) in torch, as far as LFM2 uses them: a depthwise convolution over the
last `width` tokens, whose last `width - 1` inputs are the state that the slot keeps.

Each output is the same sum in the same order however a prompt is cut, so a restored state continues as if the prompt had
never been interrupted.
"""

from types import ModuleType
from typing import Any

import torch

_NO_SLOT = -1


def replace_kernels(module: ModuleType) -> None:
    """For `mamba.causal_conv1d`."""
    module.causal_conv1d_fn = convolve_prompts  # type: ignore[attr-defined]
    module.causal_conv1d_update = convolve_tokens  # type: ignore[attr-defined]


def convolve_prompts(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    query_start_loc: torch.Tensor,
    cache_indices: torch.Tensor,
    has_initial_state: torch.Tensor,
    conv_states: torch.Tensor,
    activation: str | None = None,
    **_: Any,
) -> torch.Tensor:
    """x: (channels, tokens of all prompts); each prompt continues the state of its slot if it has one."""
    assert activation is None
    result = torch.empty_like(x)
    bounds = query_start_loc.tolist()
    rows = zip(bounds, bounds[1:], cache_indices.tolist(), has_initial_state.tolist(), strict=False)
    for start, end, slot, continues in rows:
        if slot == _NO_SLOT or start == end:
            continue
        state = conv_states[slot] if continues else torch.zeros_like(conv_states[slot])
        inputs = torch.cat([state.to(x.dtype), x[:, start:end]], dim=1)
        result[:, start:end] = _convolve(inputs, weight, bias)
        conv_states[slot] = inputs[:, -state.shape[1] :]
    return result


def convolve_tokens(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    *,
    conv_state_indices: torch.Tensor,
    **_: Any,
) -> torch.Tensor:
    """x: (requests, channels), one new token each."""
    assert activation is None
    result = torch.empty_like(x)
    for row, slot in enumerate(conv_state_indices.tolist()):
        if slot == _NO_SLOT:
            continue
        inputs = torch.cat([conv_state[slot].to(x.dtype), x[row][:, None]], dim=1)
        result[row] = _convolve(inputs, weight, bias)[:, 0]
        conv_state[slot] = inputs[:, 1:]
    return result


def _convolve(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """inputs: (channels, width - 1 + tokens) -> (channels, tokens)"""
    width = weight.shape[1]
    tokens = inputs.shape[1] - width + 1
    total = torch.zeros_like(inputs[:, :tokens]) if bias is None else bias[:, None].expand(-1, tokens)
    for tap in range(width):
        total = total + inputs[:, tap : tap + tokens] * weight[:, tap, None].to(inputs.dtype)
    return total
