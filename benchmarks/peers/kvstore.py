"""kvstore: one master (embedded store) and one segment, each its own process, and the Python client."""

from __future__ import annotations

import ctypes
import json
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.base import Memory, PeerClient, Servers
from kvstore_client import Client, Pieces, SharedBuffer
from kvstore_client._native import hex_hashes
from kvstore_client.objects import DONE_FOUND, DONE_STORED

NAMESPACE = "benchmark"
DEADLINE_MS = 30_000
PIN_MS = 10_000


class KvstoreServers(Servers):
    """`kvstore master` and `kvstore segment` as an operator would start them, on loopback."""

    name = "kvstore"

    def start(self) -> None:
        kvstore = str(Path(sys.executable).parent / "kvstore")
        master = self._announced(
            "listening",
            kvstore,
            "master",
            f"--metadata=rocksdb://{self.directory / 'kvstore-master'}",
            "--directory-port=0",
            "--control-port=0",
            "--http-port=0",
        )
        self._masters = f"127.0.0.1:{master['directory_port']}"
        self._announced(
            "attached",
            kvstore,
            "segment",
            f"--data-dir={self.directory / 'kvstore-segment'}",
            f"--masters=127.0.0.1:{master['control_port']}",
            f"--capacity={self.pool_bytes}",
            "--port=0",
            "--http-port=-1",
        )

    def connection(self) -> dict[str, Any]:
        return {"masters": self._masters}

    def _announced(self, event: str, *command: str) -> dict[str, Any]:
        """Starts a server with --json and waits for its announcement."""
        log = self.directory / f"{self.name}-{len(self._processes)}.log"
        self.spawn(*command, "--json")
        found: dict[str, Any] = {}

        def announced() -> bool:
            for line in log.read_text(errors="replace").splitlines():
                if line.startswith("{"):
                    message = json.loads(line)
                    if message.get("event") == event:
                        found.update(message)
            return bool(found)

        self.wait_for(announced, command[1])
        return found


def _pieces(addresses: list[int], size_bytes: int) -> Pieces:
    return Pieces.from_pointers(array("Q", addresses), array("Q", [size_bytes]) * len(addresses), 1)


class KvstoreClient(PeerClient):
    """The calls that the SGLang adapter makes, with their defaults: an ack means a durable directory entry, and every byte is
    checked against its digest."""

    same_host: bool

    def __init__(self, connection: dict[str, Any]) -> None:
        self._client = Client(
            connection["masters"], same_host=self.same_host, tcp=not self.same_host, deadline_ms=DEADLINE_MS
        )
        self._pages = self._client.namespace(NAMESPACE).pages()

    def put(self, keys: list[str], addresses: list[int], size_bytes: int) -> Sequence[int]:
        statuses = self._pages.put_pieces(
            hex_hashes(keys), _pieces(addresses, size_bytes), deadline_ms=DEADLINE_MS
        )
        return statuses.translate(DONE_STORED)

    def get(self, keys: list[str], addresses: list[int], size_bytes: int) -> Sequence[int]:
        statuses = self._pages.get_pieces(
            hex_hashes(keys), _pieces(addresses, size_bytes), deadline_ms=DEADLINE_MS
        )
        return statuses.translate(DONE_FOUND)

    def exists(self, keys: list[str], keep: bool) -> Sequence[int]:
        return self._pages.batch_exists(keys, pin_ms=PIN_MS if keep else 0)

    def remove(self, keys: list[str]) -> None:
        self._pages.batch_remove(keys)

    def close(self) -> None:
        self._client.close()


class KvstoreTcpClient(KvstoreClient):
    """As on another host: the data crosses TCP connections."""

    same_host = False


class KvstoreSameHostClient(KvstoreClient):
    """As beside the segment: gets copy out of its pool, puts are copied by the segment out of our sealed memory."""

    same_host = True

    def allocate(self, size_bytes: int) -> Memory:
        buffer = SharedBuffer(size_bytes)
        ctypes.memset(buffer.address, 0, size_bytes)
        return Memory(buffer.address, size_bytes, buffer)
