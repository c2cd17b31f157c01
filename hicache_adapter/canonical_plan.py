"""Pages in the canonical byte order, gathered from and scattered to wherever a host pool has their elements."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from hicache_adapter.byte_order import CANONICAL
from hicache_adapter.page_geometry import PageGeometry, Piece, flat_geometry, joined, pool_geometry
from hicache_adapter.pool_plan import AffinePlan, PoolPlan
from hicache_adapter.pool_share import PoolShare
from kvstore_client import Pieces
from kvstore_client.errors import ConfigError
from kvstore_client.keys import Shard

PIECES_MAX = 1 << 20
"""Of one page on one rank: what is kept of them, and looked through at start-up, stays within 100 MB and a second."""


class CanonicalPlan(PoolPlan):
    """A PoolPlan whose objects are rectangles of a page: the layers and heads that the shards name.

    Where they lie follows from shape and strides of the pool's tensors. That it is true is checked on a sample of pages,
    against the addresses and the flat pages that the pool itself gives.
    """

    def __init__(self, pool: Any, shards: Sequence[Shard]) -> None:
        """ConfigError for a pool that can't be served, the same on every rank."""
        self._shards = tuple(shards)
        super().__init__(pool, split=1)

    def _learn(self) -> None:
        pages = self._sample()
        page = pool_geometry(self._pool)
        self._check_addresses(page, pages)
        self.affine_plan = [
            [(base, stride * self.page_size, size) for base, stride, size in pieces]
            for pieces in self._objects(page)
        ]
        self.object_bytes = tuple(sum(size for _, _, size in pieces) for pieces in self.affine_plan)
        self.pieces_per_object = max(map(len, self.affine_plan))
        self._flat_plan = self._flat_objects(page, pages[-1] * self.page_size)

    def _objects(self, page: PageGeometry) -> AffinePlan:
        """The pieces of each shard."""
        first_layer = min(shard.layer_start for shard in self._shards)
        first_group = min(shard.head_group for shard in self._shards)
        groups = len({shard.head_group for shard in self._shards})
        group_heads = page.heads // groups
        objects = []
        for shard in self._shards:
            layer = shard.layer_start - first_layer
            head = (shard.head_group - first_group) * group_heads
            objects.append(
                page.pieces(range(layer, layer + shard.layer_count), range(head, head + group_heads))
            )
        return objects

    def _check_addresses(self, page: PageGeometry, sample: list[int]) -> None:
        """ConfigError unless the geometry covers the memory that the pool names, page by page."""
        whole = page.pieces(range(page.layers), range(page.heads))
        if len(whole) > PIECES_MAX:
            raise ConfigError(
                "byte_order",
                f"with layout {self._pool.layout!r} a page lies in {len(whole)} pieces, the limit for {CANONICAL} is "
                f"{PIECES_MAX}; use another hicache-mem-layout or smaller pages",
            )
        for number in sample:
            slot = number * self.page_size
            pointers, sizes = self._pointers([slot])
            named = _covered(zip(pointers, sizes, strict=True))
            if named != _covered((base + stride * slot, size) for base, stride, size in whole):
                raise self._disagrees("addresses")
            for address, _, size in named:
                self._check_inside(address, size)

    def _flat_objects(self, page: PageGeometry, slot: int) -> AffinePlan | None:
        """As _objects, within a flat page; None where the pool has no flat pages. ConfigError unless those are what the
        layout's name says.
        """
        try:
            view = self._pool.get_data_page(slot, flat=False)
        except NotImplementedError:
            return None
        flat = flat_geometry(self._pool.layout, page)
        at_edges = product(
            *({0, min(1, size - 1), size - 1} for size in (page.layers, page.tokens, page.heads))
        )
        for (layer, token, head), (there, here) in product(
            at_edges, list(zip(page.parts, flat.parts, strict=True))
        ):
            row = there.at(layer, token, head, slot)
            if _address_of(view, here.at(layer, token, head, 0)) != row:
                raise self._disagrees("flat pages")
        return self._objects(flat)

    def _disagrees(self, what: str) -> ConfigError:
        return ConfigError(
            "byte_order",
            f"the {what} that {type(self._pool).__name__} with layout {self._pool.layout!r} gives are not those of its "
            "tensors, so its pages can't be stored in the canonical order; use byte_order native",
        )

    def flat_memory(self, tensors: list[Any]) -> Pieces:
        """The memory of objects that lie in flat pages (interface v0), one tensor a page. ValueError
        when one doesn't fit.
        """
        if self._flat_plan is None:
            raise ValueError(f"{type(self._pool).__name__} has no flat pages; set interface_v1 to 1")
        for tensor in tensors:
            self._check_flat(tensor)
        return Pieces.affine(self._flat_plan, array("q", [tensor.data_ptr() for tensor in tensors]))

    @property
    def summary(self) -> str:
        """For the start-up log."""
        return f"{super().summary}, byte order {CANONICAL}"


def _covered(spans: Iterable[tuple[int, int]]) -> list[Piece]:
    """What memory the (address, size_bytes) cover, however it is cut. Overlaps stay."""
    return joined((address, 0, size) for address, size in sorted(spans))


def _address_of(view: Any, flat_offset: int) -> int:
    """Where the view has the byte that is at this offset of its flat copy."""
    size_bytes = int(view.element_size())
    element, address = flat_offset // size_bytes, int(view.data_ptr())
    for size, stride in zip(reversed(view.shape), reversed(view.stride()), strict=True):
        element, index = divmod(element, size)
        address += index * stride * size_bytes
    return address


def new_plan(pool: Any, share: PoolShare) -> PoolPlan:
    """Where the objects of a share lie in its pool, in the byte order that they are stored in."""
    return CanonicalPlan(pool, share.shards) if share.canonical else PoolPlan(pool, share.split)
