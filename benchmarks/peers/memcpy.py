"""The limit on one host: pages copied between private memory and a shared file, no store at all."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.base import PeerClient, Servers


class MemcpyServers(Servers):
    """No server: a memfd that both workers map."""

    name = "memcpy"
    _fd = -1

    def start(self) -> None:
        self._fd = os.memfd_create("benchmark-memcpy")
        os.posix_fallocate(self._fd, 0, self.pool_bytes)

    def connection(self) -> dict[str, Any]:
        return {"fd": self._fd, "pool_bytes": self.pool_bytes}

    def inherited_fds(self) -> Sequence[int]:
        return (self._fd,)

    def stop(self) -> None:
        os.close(self._fd)


class MemcpyClient(PeerClient):
    """A page lies where the number at the end of its key says, modulo the size of the file: writer and reader agree."""

    stores = False

    def __init__(self, connection: dict[str, Any]) -> None:
        self._pool_bytes = int(connection["pool_bytes"])
        self._map = mmap.mmap(
            int(connection["fd"]), self._pool_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE
        )
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def _places(self, keys: list[str], size_bytes: int) -> list[int]:
        slots = self._pool_bytes // size_bytes
        return [self._base + int(key[-8:], 16) % slots * size_bytes for key in keys]

    def put(self, keys: list[str], addresses: list[int], size_bytes: int) -> Sequence[int]:
        for place, address in zip(self._places(keys, size_bytes), addresses, strict=True):
            ctypes.memmove(place, address, size_bytes)
        return [True] * len(keys)

    def get(self, keys: list[str], addresses: list[int], size_bytes: int) -> Sequence[int]:
        for place, address in zip(self._places(keys, size_bytes), addresses, strict=True):
            ctypes.memmove(address, place, size_bytes)
        return [True] * len(keys)

    def exists(self, keys: list[str], keep: bool) -> Sequence[int]:
        return [True] * len(keys)

    def remove(self, keys: list[str]) -> None:
        pass
