"""What the measurements share: a store to measure, a clock, a table."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.peers.base import anonymous_memory
from benchmarks.peers.kvstore import KvstoreServers
from kvstore_client import Client, Pieces
from kvstore_client._native import hex_hashes

DEADLINE_MS = 5000
BATCH = 128


@dataclass(frozen=True)
class Table:
    """One measurement: what it asks, and the answer as rows."""

    question: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@contextlib.contextmanager
def running_store(pool_bytes: int) -> Iterator[str]:
    """A master and a segment as processes on loopback; yields the directory's address."""
    with tempfile.TemporaryDirectory(prefix="kvstore-bench-") as directory:
        servers = KvstoreServers(Path(directory), pool_bytes)
        try:
            servers.start()
            yield servers.connection()["masters"]
        finally:
            servers.stop()


@contextlib.contextmanager
def tcp_client(masters: str) -> Iterator[Client]:
    """A client as on another host."""
    with Client(masters, same_host=False, deadline_ms=DEADLINE_MS) as client:
        yield client


def fresh_keys(count: int) -> list[str]:
    """Page keys that nobody has used before, as SGLang writes them."""
    noise = os.urandom(32 * count).hex()
    return [noise[64 * i : 64 * (i + 1)] for i in range(count)]


class Batch:
    """Memory for a batch of objects, and its description for the client."""

    def __init__(self, objects: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._memory = anonymous_memory(objects * size_bytes)
        ctypes.memset(self._memory.address, 7, objects * size_bytes)
        addresses = array("Q", (self._memory.address + i * size_bytes for i in range(objects)))
        self.pieces = Pieces.from_pointers(addresses, array("Q", [size_bytes]) * objects, 1)


def hashes(keys: Sequence[str]) -> bytes:
    """Page keys as the client's calls take them."""
    return hex_hashes(list(keys))


def median_ms(
    run: Callable[[], object], repetitions: int, before: Callable[[], object] | None = None
) -> float:
    """Milliseconds a call, the median after one call that isn't counted; `before` runs untimed ahead of each."""
    times = []
    for _ in range(repetitions + 1):
        if before is not None:
            before()
        started = time.perf_counter()
        run()
        times.append((time.perf_counter() - started) * 1e3)
    return median(times[1:])
