"""Mooncake Store over TCP: its master, one segment process, and its Python client without a segment of its own.

It listens on all interfaces whatever it is told, so it runs only in a network namespace that holds nothing but loopback.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.namespace import in_private_network
from benchmarks.peers.base import (
    Memory,
    PeerClient,
    PeerUnavailable,
    Servers,
    accepts,
    anonymous_memory,
    free_port,
)

SEGMENT_READY = "segment is mounted"
LOCAL_BUFFER_BYTES = 64 << 20
# Without MC_STORE_MEMCPY=0 a client copies by itself when it can; without an address to bind to it refuses loopback.
CLIENT_ENVIRONMENT = {"MC_STORE_MEMCPY": "0", "MC_LOG_LEVEL": "ERROR", "MC_TCP_BIND_ADDRESS": "127.0.0.1"}

SEGMENT_PROGRAM = f"""
import signal, sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
rc = store.setup("127.0.0.1", sys.argv[1], int(sys.argv[2]), {LOCAL_BUFFER_BYTES}, "tcp", "", sys.argv[3])
assert rc == 0, f"setup: {{rc}}"
print({SEGMENT_READY!r}, flush=True)
signal.sigwait([signal.SIGTERM])
"""


class MooncakeServers(Servers):
    """mooncake_master with its HTTP metadata server, and a process that mounts one segment of the pool's size."""

    name = "mooncake"
    python = sys.executable  # of the environment that it is installed in

    def start(self) -> None:
        if self.python == sys.executable and importlib.util.find_spec("mooncake") is None:
            raise PeerUnavailable(
                "mooncake-transfer-engine-non-cuda is not installed (make bench installs it)"
            )
        loads = subprocess.run([self.python, "-c", "import mooncake.store"], capture_output=True, check=False)
        if loads.returncode != 0:
            why = loads.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise PeerUnavailable(f"mooncake does not load: {why}")
        if not in_private_network():
            raise PeerUnavailable(
                "it listens on all interfaces, so it needs a network namespace of its own: run as root"
            )
        self._rpc_port, metrics_port, self._metadata_port = free_port(), free_port(), free_port()
        master = Path(self.python).parent / "mooncake_master"
        self.spawn(
            str(master),
            "--rpc_address=127.0.0.1",
            f"--rpc_port={self._rpc_port}",
            "--metrics_host=127.0.0.1",
            f"--metrics_port={metrics_port}",
            "--enable_http_metadata_server=true",
            "--http_metadata_server_host=127.0.0.1",
            f"--http_metadata_server_port={self._metadata_port}",
            "--eviction_high_watermark_ratio=0.95",
            "--default_kv_lease_ttl=10000",
        )
        self.wait_for(lambda: accepts(self._rpc_port) and accepts(self._metadata_port), "the master")
        address = self.connection()
        self.spawn(
            self.python,
            "-c",
            SEGMENT_PROGRAM,
            address["metadata"],
            str(self.pool_bytes),
            address["master"],
            env={**os.environ, **CLIENT_ENVIRONMENT},
        )
        log = self.directory / f"{self.name}-1.log"
        self.wait_for(lambda: SEGMENT_READY in log.read_text(errors="replace"), "the segment")

    def connection(self) -> dict[str, Any]:
        metadata = f"http://127.0.0.1:{self._metadata_port}/metadata"
        return {"master": f"127.0.0.1:{self._rpc_port}", "metadata": metadata}


class MooncakeClient(PeerClient):
    """The zero-copy batch calls that SGLang's own Mooncake backend uses."""

    def __init__(self, connection: dict[str, Any]) -> None:
        os.environ.update(CLIENT_ENVIRONMENT)
        from mooncake.store import MooncakeDistributedStore

        self._store = MooncakeDistributedStore()
        metadata, master = connection["metadata"], connection["master"]
        code = self._store.setup("127.0.0.1", metadata, 0, LOCAL_BUFFER_BYTES, "tcp", "", master)
        if code != 0:
            raise RuntimeError(f"mooncake setup: {code}")

    def allocate(self, size_bytes: int) -> Memory:
        memory = anonymous_memory(size_bytes)
        code = self._store.register_buffer(memory.address, size_bytes)
        if code != 0:
            raise RuntimeError(f"mooncake register_buffer: {code}")
        return memory

    def put(self, keys: list[str], addresses: list[int], size_bytes: int) -> Sequence[int]:
        return [code == 0 for code in self._store.batch_put_from(keys, addresses, [size_bytes] * len(keys))]

    def get(self, keys: list[str], addresses: list[int], size_bytes: int) -> Sequence[int]:
        return [
            n == size_bytes for n in self._store.batch_get_into(keys, addresses, [size_bytes] * len(keys))
        ]

    def exists(self, keys: list[str], keep: bool) -> Sequence[int]:
        # It always grants a lease: there is no other probe.
        return [code == 1 for code in self._store.batch_is_exist(keys)]

    def remove(self, keys: list[str]) -> None:
        self._store.batch_remove(keys, True)

    def close(self) -> None:
        self._store.close()
