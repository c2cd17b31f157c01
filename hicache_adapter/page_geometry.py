"""Where each element of a page lies, in a host pool or in a flat page: from shapes and strides, so that a page can be
read in another order than it lies in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from kvstore_client.errors import ConfigError

# What the dimensions of a pool's tensor are, K and V apart. `slot`: a token of the pool; `page` and `token`: a page, and
# a token in it.
_AXES = {
    "layer_first": ("layer", "slot", "head", "element"),
    "page_first": ("slot", "layer", "head", "element"),
    "page_first_direct": ("page", "layer", "token", "head", "element"),
    "page_head": ("page", "head", "token", "layer", "element"),
}


Piece = tuple[int, int, int]
"""Consecutive bytes, as base, stride, size_bytes: at `base + stride * index`, where the index says which page."""


@dataclass(frozen=True)
class Part:
    """K, V or the latent rows of a page. All in bytes; `base` and `stride` as in a Piece."""

    base: int
    stride: int
    layer_stride: int
    token_stride: int
    head_stride: int
    row_bytes: int
    """The elements of one head, next to each other."""

    def at(self, layer: int, token: int, head: int, index: int) -> int:
        """Where such a row begins."""
        inside = layer * self.layer_stride + token * self.token_stride + head * self.head_stride
        return self.base + self.stride * index + inside


@dataclass(frozen=True)
class PageGeometry:
    """All of a page."""

    layers: int
    tokens: int
    heads: int
    parts: tuple[Part, ...]

    def pieces(self, layers: range, heads: range) -> list[Piece]:
        """The elements of these layers and heads in the canonical order: layer, part, token, head. What is next to
        each other is one piece.
        """
        in_layer = [
            (
                part,
                joined(
                    (part.at(0, token, head, 0), part.stride, part.row_bytes)
                    for token, head in product(range(self.tokens), heads)
                ),
            )
            for part in self.parts
        ]
        return joined(
            (base + layer * part.layer_stride, stride, size)
            for layer in layers
            for part, pieces in in_layer
            for base, stride, size in pieces
        )


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """The same bytes in the same order, in as few pieces as it takes."""
    runs: list[Piece] = []
    for base, stride, size in pieces:
        if runs and runs[-1][1] == stride and runs[-1][0] + runs[-1][2] == base:
            runs[-1] = (runs[-1][0], stride, runs[-1][2] + size)
        else:
            runs.append((base, stride, size))
    return runs


def pool_geometry(pool: Any) -> PageGeometry:
    """Of the pages of a host pool, the index being the number of a page's first slot. ConfigError for a pool of another
    form than keys and values of heads, or latent rows.
    """
    rows = hasattr(pool, "kv_lora_rank")
    tensors, parts = _tensors(pool, rows), []
    sizes = _sizes(pool, tensors, rows)
    for tensor, size_of in zip(tensors, sizes, strict=True):
        stride_of = dict(
            zip(_AXES[pool.layout], (s * tensor.element_size() for s in tensor.stride()), strict=True)
        )
        in_slots = "slot" in stride_of
        slot, rest = divmod(stride_of["slot" if in_slots else "page"], 1 if in_slots else size_of["token"])
        if rest or stride_of["element"] != tensor.element_size():
            raise _other_form(pool, f"strides {tuple(tensor.stride())}")
        parts.append(
            Part(
                base=tensor.data_ptr(),
                stride=slot,
                layer_stride=stride_of["layer"],
                token_stride=slot if in_slots else stride_of["token"],
                head_stride=stride_of["head"],
                row_bytes=size_of["element"] * tensor.element_size(),
            )
        )
    return PageGeometry(sizes[0]["layer"], int(pool.page_size), sizes[0]["head"], tuple(parts))


def flat_geometry(layout: str, page: PageGeometry) -> PageGeometry:
    """Of such a page's flat copy, the index being its address: K before V, each in the order of the layout."""
    parts: list[Part] = []
    base = 0
    for part in page.parts:
        size_of = {
            "layer": page.layers,
            "slot": page.tokens,
            "token": page.tokens,
            "head": page.heads,
            "page": 1,
        }
        stride_of, stride = {}, part.row_bytes
        for axis in reversed(_AXES[layout][:-1]):
            stride_of[axis] = stride
            stride *= size_of[axis]
        token = stride_of.get("slot") or stride_of["token"]
        parts.append(Part(base, 1, stride_of["layer"], token, stride_of["head"], part.row_bytes))
        base += stride
    return PageGeometry(page.layers, page.tokens, page.heads, tuple(parts))


def _tensors(pool: Any, rows: bool) -> Sequence[Any]:
    kept = pool.kv_buffer
    if rows:
        return (kept,)
    if len(kept) != 2:
        raise _other_form(pool, f"{len(kept)} tensors instead of K and V")
    return (kept[0], kept[1])


def _sizes(pool: Any, tensors: Sequence[Any], rows: bool) -> list[dict[str, int]]:
    """For each tensor the size of each axis. ConfigError unless they are what the pool says of itself."""
    axes = _AXES[pool.layout]
    page_size, slots = int(pool.page_size), int(pool.size)
    said = {
        "layer": int(pool.layer_num),
        "slot": slots,
        "page": slots // page_size,
        "token": page_size,
        "head": 1 if rows else int(pool.head_num),
    }
    found = []
    for tensor in tensors:
        shape = tuple(int(size) for size in tensor.shape)
        if len(shape) != len(axes) or any(
            said.get(axis, size) != size for axis, size in zip(axes, shape, strict=True)
        ):
            raise _other_form(pool, f"shape {shape} of {', '.join(axes)}")
        found.append(said | {"element": shape[-1]})
    return found


def _other_form(pool: Any, what: str) -> ConfigError:
    return ConfigError(
        "byte_order",
        f"{type(pool).__name__} with layout {pool.layout!r} lies in another way than is known ({what}), so its pages "
        "can't be stored in the canonical order; use byte_order native",
    )
