"""SGLang's copy kernels between a "device" pool and the host pool, in torch, for the layouts that the
server tests use: layer_first (lf), page_first (pf), page_first_direct (direct_pf), page_head (ph).
"""

import ctypes
from typing import Any

__all__ = [
    "transfer_kv_all_layer",
    "transfer_kv_all_layer_direct_lf_pf",
    "transfer_kv_all_layer_lf_pf",
    "transfer_kv_all_layer_lf_ph",
    "transfer_kv_all_layer_mla",
    "transfer_kv_all_layer_mla_lf_pf",
    "transfer_kv_direct",
    "transfer_kv_mamba_lf_pf",
    "transfer_kv_mamba_pf_lf",
    "transfer_kv_per_layer",
    "transfer_kv_per_layer_direct_pf_lf",
    "transfer_kv_per_layer_mla",
    "transfer_kv_per_layer_mla_pf_lf",
    "transfer_kv_per_layer_pf_lf",
    "transfer_kv_per_layer_ph_lf",
]


def transfer_kv_all_layer(
    *,
    src_k_layers: Any,
    dst_k_layers: Any,
    src_v_layers: Any,
    dst_v_layers: Any,
    src_indices: Any,
    dst_indices: Any,
    item_size: int,
    num_layers: int,
    **_: Any,
) -> None:
    """Device to host, layout layer_first: one row of `item_size` bytes a token on both sides; all layers are addresses."""
    for sources, targets in ((src_k_layers, dst_k_layers), (src_v_layers, dst_v_layers)):
        transfer_kv_all_layer_mla(
            src_layers=sources[:num_layers],
            dst_layers=targets[:num_layers],
            src_indices=src_indices,
            dst_indices=dst_indices,
            item_size=item_size,
        )


def transfer_kv_per_layer(
    *, src_k: Any, dst_k: Any, src_v: Any, dst_v: Any, src_indices: Any, dst_indices: Any, **_: Any
) -> None:
    """One layer of the host pool (token, head, dim) to the same of the device pool, or back."""
    dst_k[dst_indices] = src_k[src_indices]
    dst_v[dst_indices] = src_v[src_indices]


def transfer_kv_direct(
    *, src_layers: Any, dst_layers: Any, src_indices: Any, dst_indices: Any, **_: Any
) -> None:
    """Layers (token, head, dim) of one pool to those of the other."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def transfer_kv_all_layer_direct_lf_pf(
    *, src_ptrs: Any, dst_ptrs: Any, src_indices: Any, dst_indices: Any, page_size: int, **_: Any
) -> None:
    """Device to host, layout page_first_direct: all layers of K, then all of V, into host buffers (page, layer, token, ...)."""
    layers = len(src_ptrs) // len(dst_ptrs)
    pages = dst_indices[::page_size] // page_size
    for number, source in enumerate(src_ptrs):
        buffer, layer = divmod(number, layers)
        rows = source[src_indices]
        dst_ptrs[buffer][pages, layer] = rows.view(len(pages), page_size, *rows.shape[1:])


def transfer_kv_per_layer_direct_pf_lf(
    *,
    src_ptrs: Any,
    dst_ptrs: Any,
    src_indices: Any,
    dst_indices: Any,
    layer_id: int,
    page_size: int,
    **_: Any,
) -> None:
    """Host (page, layer, token, ...) to one layer of the device pool."""
    pages = src_indices[::page_size] // page_size
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        target[dst_indices] = source[pages, layer_id].flatten(0, 1)


def transfer_kv_all_layer_mla(
    *, src_layers: Any, dst_layers: Any, src_indices: Any, dst_indices: Any, item_size: int, **_: Any
) -> None:
    """Device to host, layout layer_first: one row of `item_size` bytes a token; all layers are addresses."""
    slots = list(zip(src_indices.tolist(), dst_indices.tolist(), strict=True))
    for source, target in zip(src_layers.tolist(), dst_layers.tolist(), strict=True):
        for from_slot, to_slot in slots:
            ctypes.memmove(target + to_slot * item_size, source + from_slot * item_size, item_size)


def transfer_kv_per_layer_mla(*, src: Any, dst: Any, src_indices: Any, dst_indices: Any, **_: Any) -> None:
    """One layer (token, 1, dim) of the host pool to the same of the device pool, or back."""
    dst[dst_indices] = src[src_indices]


def transfer_kv_all_layer_mla_lf_pf(
    *,
    src_layers: Any,
    dst: Any,
    src_indices: Any,
    dst_indices: Any,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
    **_: Any,
) -> None:
    """Device to host, layout page_first: one row of `item_size` bytes a token and layer; src_layers are addresses."""
    base = dst.data_ptr()
    for layer, source in enumerate(src_layers.tolist()[:num_layers]):
        for from_slot, to_slot in zip(src_indices.tolist(), dst_indices.tolist(), strict=True):
            target = base + to_slot * dst_layout_dim + layer * item_size
            ctypes.memmove(target, source + from_slot * item_size, item_size)


def transfer_kv_per_layer_mla_pf_lf(
    *, src: Any, dst: Any, src_indices: Any, dst_indices: Any, layer_id: int, **_: Any
) -> None:
    """Host (token, layer, 1, dim) to one layer of the device pool."""
    dst[dst_indices] = src[src_indices, layer_id]


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
        transfer_kv_all_layer_mla_lf_pf(
            src_layers=layers,
            dst=host,
            src_indices=src_indices,
            dst_indices=dst_indices,
            item_size=item_size,
            dst_layout_dim=dst_layout_dim,
            num_layers=num_layers,
        )


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
