"""Pages of a whole model, of which each rank of an engine holds a part: what the ranks of other engines, with other host
layouts, TP and PP sizes, must find.

The content goes into the pools, and is read out of them, by the names of the tensors' dimensions and not through the
addresses that a backend is given.
"""

from dataclasses import dataclass
from typing import Any

import torch

from sglang_harness.case import Case
from sglang_harness.engine import Engine

# Dimensions of K, of V and of latent rows, without the one that counts pages or slots, and how to put them into the
# order layer, token, head, element.
_TO_LAYER_TOKEN_HEAD = {
    "layer_first": (0, 1, 2, 3),
    "page_first": (1, 0, 2, 3),
    "page_first_direct": (0, 1, 2, 3),
    "page_head": (2, 1, 0, 3),
}


@dataclass(frozen=True)
class Prompt:
    """One prompt, and which random content its pages have."""

    token_base: int
    seed: int
    pages: int

    def tokens(self, page_size: int) -> list[int]:
        """Whole pages of tokens that no other prompt begins with."""
        return list(range(self.token_base, self.token_base + self.pages * page_size))


def write_prompt(engine: Engine, prompt: Prompt, model: Case) -> int:
    """Backs this rank's part of the prompt's pages up; tokens that SGLang counts as stored."""
    slots = engine.host_pool.alloc(prompt.pages * engine.case.page_size)
    for view, content in zip(_views(engine, slots), _contents(engine.case, prompt, model), strict=True):
        view.copy_(content)
    stored = engine.backup(slots, prompt.tokens(engine.case.page_size))[1]
    engine.host_pool.free(slots)
    return stored


def read_prompt(engine: Engine, prompt: Prompt, model: Case) -> str:
    """Loads this rank's part of the prompt's pages into a pool that held other bytes; what is wrong with it, or nothing."""
    for buffer in _buffers(engine.host_pool):
        buffer.view(torch.uint8).fill_(0xA5)
    got = engine.prefetch(prompt.tokens(engine.case.page_size))
    wanted = prompt.pages * engine.case.page_size
    if (got.hit_tokens, got.completed_tokens) != (wanted, wanted):
        return f"hit {got.hit_tokens}, loaded {got.completed_tokens} of {wanted} tokens"
    wrong = sum(
        int((_bits(view) != _bits(content)).sum())
        for view, content in zip(
            _views(engine, got.host_indices), _contents(engine.case, prompt, model), strict=True
        )
    )
    engine.host_pool.free(got.host_indices)
    return f"{wrong} elements differ" if wrong else ""


def _contents(case: Case, prompt: Prompt, model: Case) -> list[Any]:
    """For each page K and V, or the latent rows, of this rank: layer, token, head, element. `model`: the case of an engine
    with one rank.
    """
    generator = torch.Generator().manual_seed(prompt.seed)
    first_head = case.tp_rank * case.heads
    contents = []
    for _ in range(prompt.pages):
        for width in widths(model):
            dtype = getattr(torch, model.dtype)
            shape = (model.layers, model.page_size, 1 if model.kind == "mla" else model.heads, width)
            bytes_shape = (*shape[:-1], width * dtype.itemsize)
            whole = torch.randint(0, 256, bytes_shape, dtype=torch.uint8, generator=generator).view(dtype)
            part = whole[case.first_layer : case.first_layer + case.layers]
            contents.append(part if model.kind == "mla" else part[:, :, first_head : first_head + case.heads])
    return contents


def widths(case: Case) -> list[int]:
    """Elements of a head: of K and V, or of latent rows."""
    if case.kind == "mla":
        return [3 * case.head_dim]
    return [case.head_dim, case.head_dim * (2 if case.kind == "mha_asymmetric" else 1)]


def _views(engine: Engine, slots: Any) -> list[Any]:
    """The places of _contents in the pool."""
    pool, page_size = engine.host_pool, engine.case.page_size
    views = []
    for slot in slots[::page_size].tolist():
        for buffer in _buffers(pool):
            if pool.layout == "layer_first":
                page = buffer[:, slot : slot + page_size]
            elif pool.layout == "page_first":
                page = buffer[slot : slot + page_size]
            else:
                page = buffer[slot // page_size]
            view = page.permute(*_TO_LAYER_TOKEN_HEAD[pool.layout])
            views.append(view.view(getattr(torch, engine.case.dtype)))
    return views


def _buffers(pool: Any) -> list[Any]:
    return [pool.kv_buffer] if hasattr(pool, "kv_lora_rank") else [pool.k_buffer, pool.v_buffer]


def _bits(tensor: Any) -> Any:
    """Comparable as bytes: what is no number is equal to itself."""
    return tensor.contiguous().view(torch.uint8)
