"""Writes a page through the whole store and reads it back: the health line of `kvstore up`."""

from __future__ import annotations

import os
import time

from kvstore_client import Client

_BYTES = 1 << 20
_DEADLINE_MS = 5_000


def run_self_test(directory: str, token: str) -> str:
    """One line: what was done in what time, or what did not work. Blocks up to 15 s; never raises.

    `directory` is the address of a directory port, host:port.
    """
    key = f"self-test/{os.urandom(8).hex()}"
    content = os.urandom(_BYTES)
    with Client(directory, token=token, name="kvstore-self-test", deadline_ms=_DEADLINE_MS) as client:
        namespace = client.namespace("kvstore-self-test")
        started = time.monotonic()
        if not namespace.put(key, content):
            return "NOT WELL: a page of 1 MiB could not be stored"
        found = namespace.get(key)
        if found is None:
            return "NOT WELL: the page just stored could not be read"
        if found != content:
            return "NOT WELL: the page read differs from the page stored"
        elapsed_ms = (time.monotonic() - started) * 1000
        namespace.remove(key)
    return f"ok: a page of 1 MiB committed, read back and compared in {elapsed_ms:.0f} ms"
