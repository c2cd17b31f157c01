"""The pages of any of SGLang's host pools, through the pool's tensors and not through the addresses that a backend is
given.
"""

from typing import Any

import torch


def page_views(pool: Any, host_indices: Any) -> list[list[Any]]:
    """For each page, views of all its bytes: K and V, or K alone; latent or packed rows; or the states of a slot."""
    return [_views(pool, slot) for slot in host_indices[:: pool.page_size].tolist()]


def _views(pool: Any, slot: int) -> list[Any]:
    if hasattr(pool, "conv_buffer"):
        return [buffer[slot] for buffer in (pool.temporal_buffer, *pool.conv_buffer) if buffer.numel()]
    if (rows := _packed_rows(pool)) is not None:
        page = slot // pool.page_size
        return [layer[page] for layer in rows] if pool.layout == "layer_first" else [rows[page]]
    if hasattr(pool, "kv_lora_rank"):
        tensors = [pool.kv_buffer]
    else:
        tensors = [getattr(pool, name) for name in ("k_buffer", "v_buffer") if hasattr(pool, name)]
    if pool.layout == "layer_first":
        return [tensor[:, slot : slot + pool.page_size] for tensor in tensors]
    if pool.layout == "page_first":
        return [tensor[slot : slot + pool.page_size] for tensor in tensors]
    return [tensor[slot // pool.page_size] for tensor in tensors]


def _packed_rows(pool: Any) -> Any:
    """The buffer of a pool whose pages are a row a layer; None of another one."""
    if hasattr(pool, "index_k_with_scale_buffer"):
        return pool.index_k_with_scale_buffer
    return pool.kv_buffer if hasattr(pool, "row_bytes") or hasattr(pool, "num_host_pages") else None


def fill_pages(pool: Any, host_indices: Any, seed: int) -> None:
    """Reproducible bytes into the pages."""
    generator = torch.Generator().manual_seed(seed)
    for page in page_views(pool, host_indices):
        for view in page:
            raw = torch.randint(
                0, 256, (view.numel() * view.element_size(),), dtype=torch.uint8, generator=generator
            )
            view.copy_(raw.view(view.dtype).view(view.shape))


def page_bytes(pool: Any, host_indices: Any) -> list[bytes]:
    """The bytes of each page."""
    return [b"".join(map(raw_bytes, page)) for page in page_views(pool, host_indices)]


def wipe_pool(pool: Any) -> None:
    """Zeroes all of it."""
    kept = pool.kv_buffer if hasattr(pool, "kv_buffer") else pool.get_hybrid_pool_buffer()
    for buffer in kept if isinstance(kept, (tuple, list)) else [kept]:
        buffer.view(torch.uint8).zero_()


def raw_bytes(view: Any) -> bytes:
    """The view's bytes in its own order."""
    data: bytes = view.contiguous().view(torch.uint8).flatten().numpy().tobytes()
    return data
