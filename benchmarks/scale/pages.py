"""The pages of the measurement by number, so that every process knows them without being told."""

from __future__ import annotations

import random

from kvstore_client.protocol.journal import JournalGroup, JournalOp

BATCH_PAGES = 16_384  # the most that one journal message has
PAGE_BYTES = 65_536
FINGERPRINT_BYTES = 16
IDENTITY = b'{"benchmark":"scale"}'


def fingerprints(batch: int, count: int = BATCH_PAGES) -> bytes:
    """Those of the first `count` pages of a batch, 16 bytes each."""
    return random.Random(batch).randbytes(FINGERPRINT_BYTES * count)


def added(ns: bytes, batch: int, first: int, count: int) -> bytes:
    """The journal groups that add some pages of a batch."""
    start, end = first * FINGERPRINT_BYTES, (first + count) * FINGERPRINT_BYTES
    return JournalGroup(
        JournalOp.ADD, ns, fingerprints(batch, first + count)[start:end], (PAGE_BYTES,) * count
    ).encode()
