"""Writes a page through the whole store and reads it back: the health line of `kvstore up`."""

from __future__ import annotations

import os
import time

from kvstore_client._native import PageClient, Pieces, SharedBuffer, string_hashes

_BYTES = 1 << 20
_DEADLINE_MS = 5_000
_STRING_POOL = 0xFFFF
_WHOLE_SHARD = bytes.fromhex("000000000000010000000100")
_IDENTITY = b'{"purpose":"self-test"}'
_OK, _EXISTS = 0, 2


def run_self_test(directory: str, token: str) -> str:
    """One line: what was done in what time, or what did not work. `directory` is host:port.

    Blocks up to 20 s; never raises.
    """
    host, _, port = directory.rpartition(":")
    client = PageClient([(host.strip("[]"), int(port))], token=token, name="kvstore-up-self-test")
    try:
        return _write_and_read(client)
    finally:
        client.close()


def _write_and_read(client: PageClient) -> str:
    hashes = string_hashes([f"self-test/{os.urandom(8).hex()}"])
    content = os.urandom(_BYTES)
    source, target = SharedBuffer(_BYTES), SharedBuffer(_BYTES)
    memoryview(source)[:] = content
    started = time.monotonic()
    status, handle = client.open_namespace(_IDENTITY, "self-test", _DEADLINE_MS)
    if status != _OK:
        return f"NOT WELL: the directory answered {status} to a new namespace"
    put = client.put(handle, _STRING_POOL, _WHOLE_SHARD, hashes, _whole(source), _DEADLINE_MS)
    if put[0] not in (_OK, _EXISTS):
        return f"NOT WELL: a put of 1 MiB ended with status {put[0]}"
    got = client.get(handle, _STRING_POOL, _WHOLE_SHARD, hashes, _whole(target), _DEADLINE_MS)
    if got[0] != _OK:
        return f"NOT WELL: the page just written could not be read (status {got[0]})"
    if bytes(target) != content:
        return "NOT WELL: the page read differs from the page written"
    elapsed_ms = (time.monotonic() - started) * 1000
    client.remove(handle, _STRING_POOL, _WHOLE_SHARD, hashes, _DEADLINE_MS)
    return f"ok: a 1 MiB page committed, read back and compared in {elapsed_ms:.0f} ms"


def _whole(buffer: SharedBuffer) -> Pieces:
    return Pieces.affine([[(buffer.address, 0, buffer.size_bytes)]], memoryview(bytes(8)).cast("q"))
