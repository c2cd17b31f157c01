"""Messages of the data port that set RDMA up (docs/protocol.md section 6), in plain Python. Digests are carried, not
computed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kvstore_client.protocol import Reader, Status, WireError, checked_count
from support.wire.data import AttachReply

WORKER_ADDRESS_BYTES_MAX = 16_384
KEY_BYTES_MAX = 4096

_TWO_U32 = struct.Struct("<II")
_REGISTER = struct.Struct("<QQII")
_ATTACH_BYTES = 40
_POOL = struct.Struct("<QIIII")


def _checked(blob_bytes: int, bytes_max: int, what: str) -> int:
    if blob_bytes == 0:
        raise WireError(Status.BAD_REQUEST, f"{what} is empty")
    return checked_count(blob_bytes, bytes_max, f"bytes of {what}")


def _checked_range(address: int, size_bytes: int) -> None:
    if address == 0 or size_bytes == 0 or address + size_bytes > 1 << 64:
        raise WireError(Status.BAD_REQUEST, f"{size_bytes} bytes at {address} are no memory")


@dataclass(frozen=True)
class RdmaConnectRequest:
    """The address is that of the client's UCX worker."""

    worker_address: bytes
    digest: int

    def encode(self) -> bytes:
        size = _checked(len(self.worker_address), WORKER_ADDRESS_BYTES_MAX, "worker address")
        return _TWO_U32.pack(size, self.digest) + self.worker_address

    @staticmethod
    def decode(body: bytes) -> RdmaConnectRequest:
        reader = Reader(body)
        size, digest = reader.unpack(_TWO_U32, "address_bytes and digest")
        size = _checked(size, WORKER_ADDRESS_BYTES_MAX, "worker address")
        return RdmaConnectRequest(reader.take(size, "worker address"), digest)


@dataclass(frozen=True)
class RdmaConnectReply:
    """The pool as ATTACH describes it, where it lies in the segment's memory, and what is needed to read it."""

    pool: AttachReply
    map_address: int
    worker_address: bytes
    key: bytes
    digest: int  # of worker_address and key, one after the other

    def encode(self) -> bytes:
        address_bytes = _checked(len(self.worker_address), WORKER_ADDRESS_BYTES_MAX, "worker address")
        key_bytes = _checked(len(self.key), KEY_BYTES_MAX, "key")
        head = _POOL.pack(self.map_address, address_bytes, key_bytes, self.digest, 0)
        return self.pool.encode() + head + self.worker_address + self.key

    @staticmethod
    def decode(fields: bytes) -> RdmaConnectReply:
        reader = Reader(fields)
        pool = AttachReply.decode(reader.take(_ATTACH_BYTES, "pool"))
        map_address, address_bytes, key_bytes, digest, _ = reader.unpack(_POOL, "map_address")
        _checked_range(map_address, pool.map_bytes)
        address_bytes = _checked(address_bytes, WORKER_ADDRESS_BYTES_MAX, "worker address")
        key_bytes = _checked(key_bytes, KEY_BYTES_MAX, "key")
        worker_address = reader.take(address_bytes, "worker address")
        return RdmaConnectReply(pool, map_address, worker_address, reader.take(key_bytes, "key"), digest)


@dataclass(frozen=True)
class RdmaRegisterRequest:
    """Memory of the writer that the segment may read by `key`."""

    address: int
    size_bytes: int
    key: bytes
    digest: int  # of the key

    def encode(self) -> bytes:
        key_bytes = _checked(len(self.key), KEY_BYTES_MAX, "key")
        return _REGISTER.pack(self.address, self.size_bytes, key_bytes, self.digest) + self.key

    @staticmethod
    def decode(body: bytes) -> RdmaRegisterRequest:
        reader = Reader(body)
        address, size_bytes, key_bytes, digest = reader.unpack(_REGISTER, "RDMA_REGISTER")
        _checked_range(address, size_bytes)
        key_bytes = _checked(key_bytes, KEY_BYTES_MAX, "key")
        return RdmaRegisterRequest(address, size_bytes, reader.take(key_bytes, "key"), digest)


@dataclass(frozen=True)
class RdmaRegisterReply:
    buffer_id: int

    def encode(self) -> bytes:
        return _TWO_U32.pack(self.buffer_id, 0)

    @staticmethod
    def decode(fields: bytes) -> RdmaRegisterReply:
        buffer_id, _ = Reader(fields).unpack(_TWO_U32, "RDMA_REGISTER reply")
        return RdmaRegisterReply(buffer_id)
