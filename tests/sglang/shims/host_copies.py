"""SGLang's copy kernels between a "device" pool and the host pool, in torch, for the layouts that the
server tests use.
"""

import ctypes
from typing import Any

__all__ = [
    "transfer_kv_all_layer_lf_pf",
    "transfer_kv_all_layer_lf_ph",
    "transfer_kv_mamba_lf_pf",
    "transfer_kv_mamba_pf_lf",
    "transfer_kv_per_layer_pf_lf",
    "transfer_kv_per_layer_ph_lf",
]


def transfer_kv_all_layer_lf_pf(
    *,
    src_k_layers: Any,
    dst_k: Any,
    src_v_layers: Any,
    dst_v: Any,
    src_indices: Any,
    dst_indices: Any,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
    **_: Any,
) -> None:
    """Device to host, layout page_first: one row of `item_size` bytes a token and layer; src_*_layers
    are addresses.
    """
    for layers, host in ((src_k_layers, dst_k), (src_v_layers, dst_v)):
        base = host.data_ptr()
        for layer, source in enumerate(layers.tolist()[:num_layers]):
            for from_slot, to_slot in zip(src_indices.tolist(), dst_indices.tolist(), strict=True):
                target = base + to_slot * dst_layout_dim + layer * item_size
                ctypes.memmove(target, source + from_slot * item_size, item_size)


def transfer_kv_per_layer_pf_lf(
    *,
    src_k: Any,
    dst_k: Any,
    src_v: Any,
    dst_v: Any,
    src_indices: Any,
    dst_indices: Any,
    layer_id: int,
    **_: Any,
) -> None:
    """Host (token, layer, head, dim) to one layer of the device pool."""
    dst_k[dst_indices] = src_k[src_indices, layer_id]
    dst_v[dst_indices] = src_v[src_indices, layer_id]


def transfer_kv_mamba_lf_pf(
    *,
    src_ptrs: Any,
    dst: Any,
    src_indices: Any,
    dst_indices: Any,
    item_size: int,
    dst_layout_dim: int,
    **_: Any,
) -> None:
    """Device to host: one row of `item_size` bytes a state slot and layer; src_ptrs are addresses."""
    base = dst.data_ptr()
    for layer, source in enumerate(src_ptrs.tolist()):
        for from_slot, to_slot in zip(src_indices.tolist(), dst_indices.tolist(), strict=True):
            target = base + to_slot * dst_layout_dim + layer * item_size
            ctypes.memmove(target, source + from_slot * item_size, item_size)


def transfer_kv_mamba_pf_lf(
    *, src: Any, dst: Any, src_indices: Any, dst_indices: Any, layer_id: int, **_: Any
) -> None:
    """Host (slot, layer, 1, state) to one layer of the device pool."""
    dst[dst_indices] = src[src_indices, layer_id, 0]


def transfer_kv_all_layer_lf_ph(
    *,
    src_k_layers: Any,
    dst_k: Any,
    src_v_layers: Any,
    dst_v: Any,
    src_indices: Any,
    dst_indices: Any,
    item_size: int,
    num_layers: int,
    page_size: int,
    head_num: int,
    **_: Any,
) -> None:
    """Device to host, layout page_head: `item_size` bytes a token and layer, cut into one row a head;
    src_*_layers are addresses.
    """
    row_bytes = item_size // head_num
    slots = list(zip(src_indices.tolist(), dst_indices.tolist(), strict=True))
    for layers, host in ((src_k_layers, dst_k), (src_v_layers, dst_v)):
        for layer, source in enumerate(layers.tolist()[:num_layers]):
            for from_slot, to_slot in slots:
                page, token = divmod(to_slot, page_size)
                for head in range(head_num):
                    target = host[page, head, token, layer].data_ptr()
                    ctypes.memmove(target, source + from_slot * item_size + head * row_bytes, row_bytes)


def transfer_kv_per_layer_ph_lf(
    *,
    src_k: Any,
    dst_k: Any,
    src_v: Any,
    dst_v: Any,
    src_indices: Any,
    dst_indices: Any,
    layer_id: int,
    page_size: int,
    **_: Any,
) -> None:
    """Host (page, head, token, layer, dim) to one layer of the device pool."""
    pages, tokens = src_indices // page_size, src_indices % page_size
    dst_k[dst_indices] = src_k[pages, :, tokens, layer_id]
    dst_v[dst_indices] = src_v[pages, :, tokens, layer_id]
