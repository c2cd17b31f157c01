"""MiniMax M3's sparse attention (triton kernels) in torch: each query looks at the blocks of keys whose best index key
suits it best, always at the first and the last ones.

Which blocks are looked at depends on the index keys alone, so index keys that come back wrong change the answer.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch


def replace_kernels(module: ModuleType) -> None:
    """For `minimax_sparse_ops.minimax_sparse`."""
    module.minimax_sparse_prefill = attend_prompts  # type: ignore[attr-defined]
    module.minimax_sparse_decode = attend_tokens  # type: ignore[attr-defined]


def attend_prompts(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    sink: Any,
    idx_q: Any,
    idx_k_cache: Any,
    idx_v_cache: Any,
    idx_sink: Any,
    req_to_token: Any,
    slot_ids: Any,
    cu_seqlens: Any,
    seq_lens: Any,
    prefix_lens: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    block_size_q: int,
    block_size_k: int,
    topk: int,
    init_blocks: int,
    local_blocks: int,
    **_: Any,
) -> tuple[None, Any]:
    """q: (new tokens of all prompts, heads, width) -> the same."""
    starts, ends = cu_seqlens.tolist(), prefix_lens.tolist()

    def queries() -> Iterator[tuple[int, int, int]]:
        for number, slot in enumerate(slot_ids.tolist()):
            for row in range(starts[number], starts[number + 1]):
                yield row, slot, ends[number] + row - starts[number] + 1

    blocks = (block_size_k, topk, init_blocks, local_blocks)
    return None, _attend(q, k_cache, v_cache, idx_q, idx_k_cache, req_to_token, queries(), blocks)


def attend_tokens(
    q: Any,
    sink: Any,
    k_cache: Any,
    v_cache: Any,
    idx_q: Any,
    idx_sink: Any,
    idx_k_cache: Any,
    idx_v_cache: Any,
    req_to_token: Any,
    slot_ids: Any,
    seq_lens: Any,
    max_seqlen: int,
    block_size_q: int,
    block_size_k: int,
    topk: int,
    init_blocks: int,
    local_blocks: int,
    **_: Any,
) -> tuple[None, Any]:
    """q: (requests, heads, width), one new token each -> the same."""
    queries = zip(range(len(q)), slot_ids.tolist(), seq_lens.tolist(), strict=False)
    blocks = (block_size_k, topk, init_blocks, local_blocks)
    return None, _attend(q, k_cache, v_cache, idx_q, idx_k_cache, req_to_token, queries, blocks)


def _attend(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    idx_q: Any,
    idx_k_cache: Any,
    req_to_token: Any,
    queries: Iterator[tuple[int, int, int]],
    blocks: tuple[int, int, int, int],
) -> Any:
    """`queries`: row, request and number of tokens up to and with its own. `blocks`: tokens of one, how many are chosen, how
    many of them are the first and the last ones.
    """
    result = torch.zeros_like(q)
    kv_heads = k_cache.shape[1]
    scale = q.shape[-1] ** -0.5
    for row, request, length in queries:
        slots = req_to_token[request, :length].long()
        seen = _chosen(idx_q[row], idx_k_cache[slots, 0], blocks)
        keys, values = k_cache[slots[seen]], v_cache[slots[seen]]
        grouped = q[row].view(kv_heads, -1, q.shape[-1])
        scores = torch.einsum("hgd,thd->hgt", grouped, keys) * scale
        mixed = torch.einsum("hgt,thd->hgd", scores.softmax(-1), values)
        result[row] = mixed.reshape(q.shape[1], -1)
    return result


def _chosen(idx_q: Any, idx_keys: Any, blocks: tuple[int, int, int, int]) -> Any:
    """Positions of the tokens in the chosen blocks, ascending."""
    size, most, first, last = blocks
    best = (idx_q @ idx_keys.T).amax(0)  # of all index heads, a number a token
    count = -(-len(best) // size)
    padded = torch.full((count * size,), float("-inf"), dtype=best.dtype)
    padded[: len(best)] = best
    scores = padded.view(count, size).amax(1)
    scores[:first] = scores[max(0, count - last) :] = float("inf")
    chosen = scores.topk(min(most, count)).indices
    of_token = torch.arange(len(best)) // size
    return torch.isin(of_token, chosen).nonzero()[:, 0]
