"""Pool files of segments that are not running: where they lie in tests, and what a broken cell does to them meanwhile."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
SHARD_OFFSET, HASH_OFFSET = 48, 60  # in a slot header (docs/protocol.md section 7)
FORMAT_OFFSET = 8  # in the first page
FIRST_SLOT_OFFSET = 4096


@contextmanager
def pool_directory() -> Iterator[Path]:
    """A directory in memory; nothing of it is left on exit."""
    directory = Path(tempfile.mkdtemp(prefix="kvstore-pools-", dir=MEMORY))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def flip_bit(pool: Path, needle: bytes, position: int) -> None:
    """Turns one bit over, `position` bytes behind the start of the only place that holds `needle`."""
    content = pool.read_bytes()
    at = content.find(needle)
    assert at >= 0 and content.find(needle, at + 1) < 0, "the bytes are in the pool exactly once"
    with open(pool, "r+b") as file:
        file.seek(at + position)
        byte = file.read(1)[0]
        file.seek(at + position)
        file.write(bytes([byte ^ 0x10]))


def write_over(pool: Path, content: bytes) -> None:
    """Puts bytes back into the same file."""
    with open(pool, "r+b") as file:
        file.write(content)
