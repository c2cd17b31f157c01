"""0012, Python decides and C++ moves: the same work on both sides."""

from __future__ import annotations

import os
import struct
import zlib

from benchmarks.decisions.base import BATCH, Table, median_ms
from kvstore_client._native import DirectoryIndex, crc32c

ENTRIES = 200_000


def measure(repetitions: int) -> Table:
    """A batch of look-ups in an index of 200,000 objects, and a digest of 1 MiB."""
    namespace = bytes(8)
    fingerprints = [os.urandom(16) for _ in range(ENTRIES)]
    native = DirectoryIndex()
    for start in range(0, ENTRIES, 10_000):
        part = fingerprints[start : start + 10_000]
        lengths = struct.pack("<I", 65536) * len(part)
        native.apply(0, struct.pack("<B3xI8s", 1, len(part), namespace) + b"".join(part) + lengths)
    python = dict.fromkeys(fingerprints, (0, 65536))
    asked = fingerprints[:: ENTRIES // BATCH][:BATCH]
    body = namespace + struct.pack("<IB3x", BATCH, 1) + b"".join(asked)
    blob = b"".join(asked)

    def in_python() -> bytes:
        found = [python.get(blob[16 * i : 16 * (i + 1)]) for i in range(BATCH)]
        return b"".join(struct.pack("<II", *place) if place else bytes(8) for place in found)

    data = os.urandom(1 << 20)
    rows = []
    for what, ours, theirs in (
        (f"{BATCH} look-ups", lambda: native.lookup(body), in_python),
        ("CRC of 1 MiB", lambda: crc32c(data), lambda: zlib.crc32(data)),
    ):
        ours_us, theirs_us = (median_ms(run, repetitions * 50) * 1e3 for run in (ours, theirs))
        rows.append([what, f"{ours_us:.1f}", f"{theirs_us:.1f}", f"{theirs_us / ours_us:.1f}"])
    return Table(
        "the same work in the native core and in Python", ["work", "C++ us", "Python us", "ratio"], rows
    )
