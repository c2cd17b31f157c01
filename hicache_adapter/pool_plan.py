"""Where the pages of a host pool lie: learnt once from the pool itself, so that a batch costs no
Python per page.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hicache_adapter.page_identity import LAYOUTS
from kvstore_client import Client, Pieces, _native
from kvstore_client.errors import ConfigError

_U64_MAX = (1 << 64) - 1


@dataclass(frozen=True)
class Region:
    """A host buffer of the pool, and the file it lives in (`fd`, or -1)."""

    address: int
    size_bytes: int
    fd: int


AffinePlan = Sequence[Sequence[tuple[int, int, int]]]
"""For each object of a page its pieces: base, stride a page, bytes."""


class PoolPlan:
    """Turns `host_indices` into the memory of a batch.

    Object s of a page is the concatenation of the pieces `affine_plan[s]`; of page number p they lie at
    `base + stride * p`. That is checked on a sample of the pool's pages when the plan is made; a pool whose pages don't lie that way is
    asked for pointers on every call instead.
    """

    def __init__(self, pool: Any, split: int) -> None:
        """ConfigError for a pool that can't be served, the same on every rank."""
        _refuse_unknown(pool)
        import torch

        self._pool = pool
        self._split = split
        self._index_dtype = torch.int64
        self.page_size = int(pool.page_size)
        self.slot_count = int(pool.size)
        self.regions = _regions(pool)
        self.affine_plan: AffinePlan | None = None
        try:
            self._learn()
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                "hicache-mem-layout",
                f"{type(pool).__name__} with layout {pool.layout!r} does not give page addresses: {error!r}",
            ) from error
        self.page_bytes = sum(self.object_bytes)
        """Of this rank's share of a page."""
        self._pages = _native.PagePlan(self.affine_plan or [], self.page_size, self.slot_count)

    def _learn(self) -> None:
        sample = self._sample()
        pages = [self._pointers([page * self.page_size]) for page in sample]
        first, sizes = pages[0]
        if not first or len(first) % self._split:
            raise ConfigError(
                "hicache-mem-layout",
                f"{len(first)} pieces a page don't come out even over {self._split} head groups",
            )
        self.pieces_per_object = len(first) // self._split
        self.piece_sizes = tuple(sizes)
        self.object_bytes = tuple(
            sum(sizes[at : at + self.pieces_per_object])
            for at in range(0, len(sizes), self.pieces_per_object)
        )
        if len(set(self.object_bytes)) != 1 or not self.object_bytes[0]:
            raise ConfigError(
                "hicache-mem-layout", f"objects of a page differ in size or are empty: {self.object_bytes}"
            )
        for pointers, their_sizes in pages:
            if tuple(their_sizes) != self.piece_sizes:
                raise ConfigError("hicache-mem-layout", "pages of the pool differ in their piece sizes")
            for pointer, size in zip(pointers, their_sizes, strict=True):
                self._check_inside(pointer, size)
        self.affine_plan = self._affine(sample, [pointers for pointers, _ in pages])

    def _sample(self) -> list[int]:
        """Numbers of some pages. ConfigError where there is none."""
        page_count = self.slot_count // self.page_size
        if page_count < 1:
            raise ConfigError(
                "hicache-size",
                f"the host pool has {self.slot_count} slots, less than one page of {self.page_size}",
            )
        return sorted({0, min(1, page_count - 1), page_count // 2, page_count - 1})

    def _affine(self, sample: list[int], pointers: list[list[int]]) -> AffinePlan | None:
        strides = [0] * len(pointers[0])
        if len(sample) > 1:
            pages_apart = sample[1] - sample[0]
            for piece, (low, high) in enumerate(zip(pointers[0], pointers[1], strict=True)):
                strides[piece], rest = divmod(high - low, pages_apart)
                if rest or strides[piece] < 0:
                    return None
        for page, found in zip(sample, pointers, strict=True):
            expected = [base + stride * page for base, stride in zip(pointers[0], strides, strict=True)]
            if found != expected:
                return None
        flat = list(zip(pointers[0], strides, self.piece_sizes, strict=True))
        return [flat[at : at + self.pieces_per_object] for at in range(0, len(flat), self.pieces_per_object)]

    def _check_inside(self, pointer: int, size: int) -> None:
        if not 0 < pointer <= _U64_MAX - size or not any(
            region.address <= pointer and pointer + size <= region.address + region.size_bytes
            for region in self.regions
        ):
            raise ConfigError(
                "hicache-mem-layout", f"the pool names memory outside of its buffers: {pointer:#x}+{size}"
            )

    def _pointers(self, slots: list[int]) -> tuple[list[int], list[int]]:
        """The pool's own answer for the pages that start at these slots."""
        import torch

        indices = torch.tensor([slot + i for slot in slots for i in range(self.page_size)], dtype=torch.int64)
        return self._ask(indices)

    def _ask(self, indices: Any) -> tuple[list[int], list[int]]:
        if self._split > 1:
            pointers, sizes = self._pool.get_split_heads_page_buffer_meta(indices, self._split)
        else:
            pointers, sizes = self._pool.get_page_buffer_meta(indices)
        return [int(p) for p in pointers], [int(s) for s in sizes]

    def lend_to(self, client: Client) -> None:
        """Lets same-host segments read the pool's shared memory, and RDMA, where it is on, any of it."""
        for region in self.regions:
            if region.fd >= 0:
                client.register_fd(region.address, region.size_bytes, region.fd)
            else:
                client.register_memory(region.address, region.size_bytes)

    def take_back_from(self, client: Client) -> None:
        """The inverse."""
        for region in self.regions:
            client.unregister(region.address)

    def memory(self, key_count: int, host_indices: Any) -> Pieces:
        """The memory of the batch's objects. ValueError unless host_indices names key_count whole, aligned pages inside
        the pool.
        """
        if host_indices.dtype is not self._index_dtype or not host_indices.is_contiguous():
            raise ValueError("host indices are int64, one behind the other")
        address, count = host_indices.data_ptr(), host_indices.numel()
        if self.affine_plan is not None:
            return self._pages.pieces(address, count, key_count)
        self._pages.check(address, count, key_count)
        pointers, sizes = self._ask(host_indices)
        if sizes != list(self.piece_sizes) * key_count:
            raise ValueError("the pool's pages have changed their piece sizes")
        return Pieces.from_pointers(array("Q", pointers), array("Q", sizes), self.pieces_per_object)

    def flat_memory(self, tensors: list[Any]) -> Pieces:
        """The memory of objects that lie in flat pages (interface v0), one tensor a page. ValueError
        when one doesn't fit.
        """
        pointers, sizes = array("Q"), array("Q")
        page_bytes = self.page_bytes
        for tensor in tensors:
            self._check_flat(tensor)
            base = tensor.data_ptr()
            if self._split == 1:
                pointers.append(base)
                sizes.append(page_bytes)
                continue
            # page_head, flat: K of all head groups, then V of all; an object is one group's K, then its V.
            group_bytes = self.object_bytes[0] // 2
            for group in range(self._split):
                pointers.extend((base + group * group_bytes, base + page_bytes // 2 + group * group_bytes))
                sizes.extend((group_bytes, group_bytes))
        return Pieces.from_pointers(pointers, sizes, 1 if self._split == 1 else 2)

    def _check_flat(self, tensor: Any) -> None:
        if not tensor.is_contiguous() or tensor.numel() * tensor.element_size() != self.page_bytes:
            raise ValueError(f"a flat page is a contiguous tensor of {self.page_bytes} bytes")

    @property
    def summary(self) -> str:
        """For the start-up log."""
        how = "affine" if self.affine_plan is not None else "pointer lists"
        shared = "shm" if any(region.fd >= 0 for region in self.regions) else "private"
        sizes = "/".join(map(str, dict.fromkeys(self.object_bytes)))
        objects = f"{len(self.object_bytes)} x {sizes} B a page"
        return f"{objects} in {self.pieces_per_object} pieces ({how}, {shared} memory)"


def _refuse_unknown(pool: Any) -> None:
    name = type(pool).__name__
    if getattr(pool, "layout", None) not in LAYOUTS:
        raise ConfigError(
            "hicache-mem-layout",
            f"{getattr(pool, 'layout', None)!r} of {name} is not supported; use one of {', '.join(LAYOUTS)}",
        )
    if int(getattr(pool, "dcp_size", 1) or 1) > 1:
        raise ConfigError(
            "dcp-size", "decode context parallelism is not supported; serve this model without it"
        )


def _regions(pool: Any) -> tuple[Region, ...]:
    buffers = _buffers(pool)
    fds = list(getattr(getattr(pool, "allocator", None), "fds", None) or ())
    if len(fds) != len(buffers):
        fd = getattr(pool, "fd", None)
        fds = [fd] if len(buffers) == 1 and isinstance(fd, int) else [-1] * len(buffers)
    return tuple(
        Region(buffer.data_ptr(), buffer.numel() * buffer.element_size(), int(fd))
        for buffer, fd in zip(buffers, fds, strict=True)
    )


def _buffers(pool: Any) -> list[Any]:
    """The pool's tensors that hold anything. Pools of states keep no kv_buffer in 0.5.20 and older."""
    kept = getattr(pool, "kv_buffer", None)
    if kept is None:
        kept = pool.get_hybrid_pool_buffer()
    return [buffer for buffer in (kept if isinstance(kept, (tuple, list)) else [kept]) if buffer.numel() > 0]
