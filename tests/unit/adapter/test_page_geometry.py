"""Pieces of a page in the canonical order, against the elements themselves read one by one."""

from __future__ import annotations

import ctypes
import math
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_adapter import ConfigError
from hicache_adapter.page_geometry import PageGeometry, Piece, flat_geometry, joined, pool_geometry

AXES = {  # of SGLang's pools, K and V apart
    "layer_first": "lshe",
    "page_first": "slhe",
    "page_first_direct": "plthe",
    "page_head": "phtle",
}
ITEM_BYTES = 2


class Tensor:
    """Memory with a shape: what is asked of a contiguous tensor. Each element is a number of its own."""

    def __init__(self, shape: tuple[int, ...], first: int = 0) -> None:
        count = math.prod(shape)
        self.memory = (ctypes.c_uint16 * count)(*((first + number) % 65536 for number in range(count)))
        self.shape = shape
        self.elements = memoryview(self.memory).cast("B").cast("H", shape=shape)

    def data_ptr(self) -> int:
        return ctypes.addressof(self.memory)

    def element_size(self) -> int:
        return ITEM_BYTES

    def stride(self) -> tuple[int, ...]:
        return tuple(math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))


class Pool(SimpleNamespace):
    """A host pool with pages of random content."""

    def element(self, part: int, page: int, layer: int, token: int, head: int, element: int) -> int:
        """Read by the meaning of the axes, one element at a time."""
        slot = page * self.page_size + token
        at = {"l": layer, "s": slot, "p": page, "t": token, "h": head, "e": element}
        return int(self.tensors[part].elements[tuple(at[axis] for axis in AXES[self.layout])])

    def flat_page(self, page: int) -> Tensor:
        """A copy of the page as SGLang makes it: K before V, each in the order of its axes."""
        numbers: list[int] = []
        for part, width in enumerate(self.widths):
            size = {"l": self.layer_num, "s": self.page_size, "p": 1, "t": self.page_size}
            size |= {"h": self.head_num, "e": width}
            for at in product(*(range(size[axis]) for axis in AXES[self.layout])):
                where = dict(zip(AXES[self.layout], at, strict=True))
                token = where["s"] if "s" in where else where["t"]
                numbers.append(self.element(part, page, where["l"], token, where["h"], where["e"]))
        flat = Tensor((len(numbers),))
        flat.memory[:] = numbers
        return flat


def new_pool(layout: str, layers: int, page_size: int, pages: int, heads: int, widths: list[int]) -> Pool:
    """`widths`: elements of a head, one number for latent rows, two for K and V."""
    size = {"l": layers, "s": pages * page_size, "p": pages, "t": page_size, "h": heads}
    tensors = [
        Tensor(tuple((size | {"e": width})[axis] for axis in AXES[layout]), first=40_000 * number)
        for number, width in enumerate(widths)
    ]
    fields: dict[str, Any] = {
        "layout": layout,
        "layer_num": layers,
        "page_size": page_size,
        "head_num": heads,
    }
    fields |= {"size": pages * page_size, "widths": widths, "tensors": tensors, "kv_buffer": tensors}
    if len(widths) == 1:
        fields |= {"kv_lora_rank": widths[0], "kv_buffer": tensors[0]}
    return Pool(**fields)


def content(pieces: list[Piece], index: int) -> list[int]:
    """The elements that the pieces name, one piece after the other."""
    data = b"".join(ctypes.string_at(base + stride * index, size) for base, stride, size in pieces)
    return list(memoryview(data).cast("H"))


def in_canonical_order(pool: Pool, page: int, layers: range, heads: range) -> list[int]:
    return [
        pool.element(part, page, layer, token, head, element)
        for layer in layers
        for part, width in enumerate(pool.widths)
        for token in range(pool.page_size)
        for head in heads
        for element in range(width)
    ]


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    layout = draw(st.sampled_from(list(AXES)))
    size = st.integers(1, 4)
    widths = [draw(size)] if draw(st.booleans()) and layout != "page_head" else [draw(size), draw(size)]
    heads = 1 if len(widths) == 1 else draw(size)
    return new_pool(layout, draw(size), draw(size), draw(size), heads, widths)


@st.composite
def rectangles(draw: st.DrawFn) -> tuple[Pool, int, range, range]:
    pool = draw(pools())
    page = draw(st.integers(0, pool.size // pool.page_size - 1))
    first, head = draw(st.integers(0, pool.layer_num - 1)), draw(st.integers(0, pool.head_num - 1))
    layers = range(first, draw(st.integers(first + 1, pool.layer_num)))
    return pool, page, layers, range(head, draw(st.integers(head + 1, pool.head_num)))


@given(rectangles())
def test_the_pieces_of_a_rectangle_are_its_elements_in_the_canonical_order(
    rectangle: tuple[Pool, int, range, range],
) -> None:
    pool, page, layers, heads = rectangle
    expected = in_canonical_order(pool, page, layers, heads)
    geometry = pool_geometry(pool)
    assert content(geometry.pieces(layers, heads), page * pool.page_size) == expected
    flat = pool.flat_page(page)
    of_flat = flat_geometry(pool.layout, geometry).pieces(layers, heads)
    assert content(of_flat, flat.data_ptr()) == expected


@given(pools())
def test_no_two_pieces_could_be_one_and_together_they_are_the_page(pool: Pool) -> None:
    geometry = pool_geometry(pool)
    pieces = whole(geometry)
    assert joined(pieces) == pieces
    assert sum(size for _, _, size in pieces) == (
        geometry.layers * geometry.tokens * geometry.heads * sum(pool.widths) * ITEM_BYTES
    )


PIECES = {  # of 3 layers, 4 tokens, 2 heads
    ("layer_first", False): 3 * 2,
    ("page_first_direct", False): 3 * 2,
    ("page_first", False): 3 * 2 * 4,
    ("page_head", False): 3 * 2 * 4 * 2,
    ("layer_first", True): 3,
    ("page_first_direct", True): 1,
    ("page_first", True): 3 * 4,
}


@pytest.mark.parametrize(("layout", "latent"), PIECES)
def test_a_page_is_in_as_few_pieces_as_the_layout_allows(layout: str, latent: bool) -> None:
    pool = new_pool(layout, 3, 4, 2, 1 if latent else 2, [8] if latent else [8, 8])
    assert len(whole(pool_geometry(pool))) == PIECES[layout, latent]


def whole(geometry: PageGeometry) -> list[Piece]:
    return geometry.pieces(range(geometry.layers), range(geometry.heads))


def changed(laid_out: str, widths: tuple[int, ...] = (8, 8), **changes: Any) -> Pool:
    pool = new_pool(laid_out, 3, 4, 2, 2, list(widths))
    vars(pool).update(changes)
    return pool


OTHER_FORMS = {
    "more layers": changed("layer_first", layer_num=4),
    "fewer heads": changed("page_head", head_num=1),
    "smaller pages": changed("page_first_direct", page_size=2),
    "more slots": changed("page_first", size=12),
    "another order of axes": changed("page_first", layout="layer_first"),
    "more axes": changed("page_first", layout="page_head"),
    "scales beside K and V": changed("page_first", (8, 8, 1)),
    "K alone": changed("page_first", (8, 8), kv_buffer=[Tensor((8, 3, 2, 8))]),
}


@pytest.mark.parametrize("what", OTHER_FORMS)
def test_a_pool_of_another_form_is_refused_with_the_remedy(what: str) -> None:
    with pytest.raises(ConfigError, match=r"^byte_order: Pool with layout .*use byte_order native"):
        pool_geometry(OTHER_FORMS[what])


def test_elements_with_gaps_between_them_are_refused() -> None:
    pool = new_pool("page_first", 3, 4, 2, 2, [8, 8])
    pool.tensors[1].stride = lambda: (96, 32, 16, 2)
    with pytest.raises(ConfigError, match=r"^byte_order: .*strides \(96, 32, 16, 2\)"):
        pool_geometry(pool)


def test_pieces_that_part_on_another_page_stay_apart() -> None:
    side_by_side = [(100, 8, 16), (116, 8, 16), (132, 4, 16), (148, 4, 16)]
    assert joined(side_by_side) == [(100, 8, 32), (132, 4, 32)]
