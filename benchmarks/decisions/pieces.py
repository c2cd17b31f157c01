"""0041, one byte order for all layouts: what it costs to gather a page from where a host pool has its elements."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from statistics import median
from types import SimpleNamespace

from benchmarks.decisions.base import DEADLINE_MS, Table, fresh_keys, hashes, running_store
from benchmarks.peers.base import anonymous_memory
from hicache_adapter.page_geometry import PageGeometry, Piece, pool_geometry
from kvstore_client import Client, Pieces
from kvstore_client.protocol import Status

PAGES = 64
LAYERS, TOKENS, HEADS, WIDTH, ITEM_BYTES = 32, 16, 4, 128, 2  # of a page of 1 MiB
PAGE_BYTES = LAYERS * 2 * TOKENS * HEADS * WIDTH * ITEM_BYTES
SLOTS = PAGES * TOKENS

# Shapes of K, and of V, as SGLang's host pools have them.
SHAPES = {
    "layer_first": (LAYERS, SLOTS, HEADS, WIDTH),
    "page_first": (SLOTS, LAYERS, HEADS, WIDTH),
    "page_head": (PAGES, HEADS, TOKENS, LAYERS, WIDTH),
}
CLIENTS = {
    "TCP": {"same_host": False},
    "same host": {"tcp": False},
    "same host, pool in shared memory": {"tcp": False},
}


class _Tensor:
    """Where a contiguous tensor lies."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self._address = address
        self.shape = shape

    def data_ptr(self) -> int:
        return self._address

    def element_size(self) -> int:
        return ITEM_BYTES

    def stride(self) -> tuple[int, ...]:
        return tuple(prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))


@dataclass
class _Rates:
    put: list[float] = field(default_factory=list)
    get: list[float] = field(default_factory=list)


def measure(repetitions: int) -> Table:
    """Put and get of 64 pages of 1 MiB, the layouts in turn: K and V as they lie, and in the canonical order."""
    rows = []
    for name, options in CLIENTS.items():
        with (
            _pool_memory(shared="shared" in name) as (address, fd),
            running_store((repetitions + 2) * len(SHAPES) * 2 * PAGES * PAGE_BYTES) as masters,
            Client(masters, deadline_ms=DEADLINE_MS, **options) as client,
        ):
            if fd is not None:
                client.register_fd(address, PAGES * PAGE_BYTES, fd)
            rows += [[name, *row] for row in _compare(client, _plans(address), repetitions)]
    head = [
        "transport",
        "host layout",
        "pieces a page",
        "piece",
        "put GB/s",
        "get GB/s",
        "put / native",
        "get / native",
    ]
    return Table(f"{PAGES} pages of 1 MiB, gathered from host pools", head, rows)


@contextlib.contextmanager
def _pool_memory(*, shared: bool) -> Iterator[tuple[int, int | None]]:
    """Address of a pool's memory, all of it touched, and the file that it is, if `shared`."""
    if not shared:
        memory = anonymous_memory(PAGES * PAGE_BYTES)
        yield memory.address, None
        return
    fd = os.memfd_create("pool")
    try:
        os.ftruncate(fd, PAGES * PAGE_BYTES)
        area = mmap.mmap(fd, 0)
        area.write(bytes(PAGES * PAGE_BYTES))
        yield ctypes.addressof(ctypes.c_char.from_buffer(area)), fd
    finally:
        os.close(fd)


def _plans(address: int) -> dict[str, list[Piece]]:
    half = PAGES * PAGE_BYTES // 2
    plans = {
        "page_first, native": [
            (address + part * half, PAGE_BYTES // 2 // TOKENS, PAGE_BYTES // 2) for part in (0, 1)
        ]
    }
    for layout, shape in SHAPES.items():
        pool = SimpleNamespace(
            layout=layout, layer_num=LAYERS, size=SLOTS, page_size=TOKENS, head_num=HEADS,
            kv_buffer=[_Tensor(address + part * half, shape) for part in (0, 1)],
        )  # fmt: skip
        page: PageGeometry = pool_geometry(pool)
        plans[layout] = page.pieces(range(LAYERS), range(HEADS))
    return plans


def _compare(client: Client, plans: dict[str, list[Piece]], repetitions: int) -> list[list[str]]:
    pages = client.namespace("pieces").pages()
    slots = array("q", range(0, SLOTS, TOKENS))
    rates = {name: _Rates() for name in plans}
    for repetition in range(repetitions + 1):
        for name, plan in plans.items():
            keys = hashes(fresh_keys(PAGES))

            def memory(plan: list[Piece] = plan) -> Pieces:
                return Pieces.affine([plan], slots)  # each time, as a caller without a PagePlan does

            def put(keys: bytes = keys, memory: Callable[[], Pieces] = memory) -> bytes:
                return pages.put_pieces(keys, memory(), deadline_ms=DEADLINE_MS)

            def get(keys: bytes = keys, memory: Callable[[], Pieces] = memory) -> bytes:
                return pages.get_pieces(keys, memory(), deadline_ms=DEADLINE_MS)

            put_rate, get_rate = _rate(put, Status.OK), _rate(get, Status.OK)
            if repetition:  # the first one isn't counted
                rates[name].put.append(put_rate)
                rates[name].get.append(get_rate)
    native = next(iter(rates.values()))
    return [
        [
            name,
            str(len(plans[name])),
            f"{plans[name][0][2]} B",
            f"{median(rate.put):.2f}",
            f"{median(rate.get):.2f}",
            f"{median(rate.put) / median(native.put):.2f}",
            f"{median(rate.get) / median(native.get):.2f}",
        ]
        for name, rate in rates.items()
    ]


def _rate(call: Callable[[], bytes], done: int) -> float:
    started = time.perf_counter()
    statuses = call()
    seconds = time.perf_counter() - started
    if set(statuses) != {done}:
        raise RuntimeError(f"not all of {PAGES} pages were moved: statuses {set(statuses)}")
    return PAGES * PAGE_BYTES / 1e9 / seconds
