"""The unix socket: attach, locate, pull, suspect."""

import ctypes
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore_client import _native

from .peer import (
    ATTACH,
    DIGEST_MISMATCH,
    MISS,
    NS,
    OK,
    POOL_ID,
    PULL,
    REGISTER,
    WHOLE,
    Peer,
    hashes,
    key_block,
    values,
)

# ---- the same host


@pytest.fixture
def unix_peer(store: _native.SegmentStore, tmp_path: Path) -> Iterator[Peer]:
    server = _native.DataServer(store, tcp_host="127.0.0.1", unix_path=str(tmp_path / "data.sock"))
    with Peer(str(tmp_path / "data.sock")) as peer:
        yield peer
    server.stop()


def attach(peer: Peer) -> tuple[mmap.mmap, int, int]:
    """The pool, mapped read-only, with the table's offset and the size of a header."""
    reply = peer.call(ATTACH, b"")
    map_bytes, table_offset, slot_count, slot_bytes, pool_id = struct.unpack("<QQII16s", reply.fields)
    (descriptor,) = reply.descriptors
    assert (slot_count, slot_bytes, pool_id) == (map_bytes // 128, 128, POOL_ID)
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, map_bytes)
    pool = mmap.mmap(descriptor, map_bytes, prot=mmap.PROT_READ)
    os.close(descriptor)
    return pool, table_offset, slot_bytes


def test_a_slot_header_in_the_attached_pool_describes_the_object(unix_peer: Peer) -> None:
    keys, data = hashes("page"), values(1, 70_000)
    extra = struct.pack("<I", 17) + struct.pack("<H", 4) + b"text"
    assert unix_peer.put(keys, data, flags=3, extra=extra).statuses == [OK]
    pool, table_offset, slot_bytes = attach(unix_peer)
    (found,) = unix_peer.locate(keys)
    header = pool[table_offset + found.slot * slot_bytes :][:128]
    assert struct.unpack_from("<QIHBBQIIIHH8s12s32s", header) == (
        found.generation,
        0x544F4C53,
        1,
        2,
        1,
        found.offset,
        len(data[0]),
        _native.crc32c(data[0]),
        17,
        4,
        0,
        NS,
        WHOLE,
        keys[0],
    )
    assert pool[found.offset : found.offset + found.length] == data[0]
    assert pool[found.offset + found.length :][:4] == b"text"
    pool.close()


def test_a_pull_copies_from_the_clients_own_memory(unix_peer: Peer) -> None:
    (data,) = values(1, 100_000)
    descriptor = os.memfd_create("client", os.MFD_ALLOW_SEALING)
    os.pwrite(descriptor, data, 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    reply = unix_peer.call_with_descriptor(REGISTER, struct.pack("<QII", len(data), 0, 0), descriptor)
    os.close(descriptor)
    buffer_id, mode = struct.unpack("<II", reply.fields)
    assert mode == 1
    keys = hashes("a", "b")
    body = struct.pack("<BBHI", 0, 0, 0, 1000) + key_block(keys) + struct.pack("<2I", 300, 50_000)
    body += struct.pack("<II4Q4I", buffer_id, 2, 0, 1000, 50_000, 10, 100, 200, 49_999, 1)
    assert unix_peer.call(PULL, body).statuses == [OK, OK]
    expected = [data[:100] + data[1000:1200], data[50_000:99_999] + data[10:11]]
    assert unix_peer.get(keys) == [(OK, value) for value in expected]


def test_a_damaged_object_is_quarantined_when_a_reader_suspects_it(
    unix_peer: Peer, store: _native.SegmentStore
) -> None:
    keys = hashes("bad", "good")
    unix_peer.put(keys, values(2, 9000))
    bad = unix_peer.locate(keys)[0]
    # Only the segment's own map is writable: find it among this process' maps and flip a bit there.
    with open("/proc/self/maps") as maps:
        own = next(line for line in maps if "rw-s" in line and "kvstore-pool" in line)
    address = int(own.split("-")[0], 16) + bad.offset
    ctypes.memset(address, ctypes.string_at(address, 1)[0] ^ 0x40, 1)
    assert unix_peer.suspect([*keys, *hashes("absent")]) == [DIGEST_MISMATCH, OK, MISS]
    assert [status for status, _ in unix_peer.get(keys)] == [MISS, OK]
    stats = store.stats()
    assert (stats["quarantined_slots"], stats["digest_mismatches"], stats["object_count"]) == (1, 1, 1)
    _, _, groups = store.journal_drain(10) or (0, 0, b"")
    assert groups[16 + 2 * 20] == 2  # the two ADDs are followed by a REMOVE
