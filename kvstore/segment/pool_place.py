"""Which file a segment's pool is, and what is known of the one that an earlier process has left."""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from kvstore.common.capacity import capacity_of
from kvstore.segment.errors import SegmentStartError
from kvstore.segment.identity import cannot_write
from kvstore_client._native import pool_file_capacity_bytes

SMALL_PAGES = Path("/dev/shm")
HUGE_PAGES = Path("/dev/hugepages")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NOTE = "pool"
_NAME = re.compile(r"kvstore-[0-9a-f]{32}")


@dataclass(frozen=True)
class PoolPlace:
    """`path` is None for memory that ends with the process; `required`: it is this path or none."""

    path: Path | None
    required: bool


def pool_place(choice: str, segment_id: bytes, huge_pages: str) -> PoolPlace:
    """What the setting pool_path means for this segment."""
    if choice == "off":
        return PoolPlace(None, required=True)
    if choice != "auto":
        return PoolPlace(Path(choice), required=True)
    directory = HUGE_PAGES if huge_pages in ("2MiB", "1GiB") else SMALL_PAGES
    return PoolPlace(directory / f"kvstore-{segment_id.hex()}", required=False)


def bytes_at(path: Path | None) -> int:
    """The memory that the pool file has already; 0 when there is none."""
    if path is None:
        return 0
    try:
        return os.lstat(path).st_blocks * 512
    except OSError:
        return 0


@dataclass(frozen=True)
class KeptPool:
    """A pool that an earlier process of this data directory has left."""

    path: Path
    capacity_bytes: int
    boot_id: str = ""  # of the kernel in whose memory it was


def kept_pool(data_dir: Path) -> KeptPool | None:
    """None when there was none, or it is gone: by a reboot, say."""
    noted = _noted(data_dir)
    try:
        return noted if noted is not None and os.lstat(noted.path).st_size > 0 else None
    except OSError:
        return None


def why_lost(data_dir: Path, path: Path | None) -> str:
    """Of a pool that was at `path` when an earlier process had it, and is not there now: why; empty for any other."""
    noted = _noted(data_dir)
    if noted is None or noted.path != path or kept_pool(data_dir) is not None:
        return ""
    if noted.boot_id != boot_id():
        return "the machine has been restarted since: what was in its memory is gone"
    return f"its file {path} has been removed"


def boot_id() -> str:
    """Of the running kernel."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _noted(data_dir: Path) -> KeptPool | None:
    try:
        note = json.loads((data_dir / _NOTE).read_text())
        return KeptPool(Path(note["path"]), int(note["capacity_bytes"]), str(note.get("boot_id", "")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def capacity_at(setting: str, data_dir: Path, path: Path | None) -> int:
    """The size of the pool at `path`: as `setting` says, and 'auto' as it was. CapacityError when it can't fit."""
    if setting == "auto" and path is not None:
        kept = kept_pool(data_dir)
        # Killed before it was noted, or the note is lost: the pool itself says it.
        had = (
            kept.capacity_bytes
            if kept is not None and kept.path == path
            else pool_file_capacity_bytes(str(path))
        )
        if had > 0:
            return had
    return capacity_of(setting, had_bytes=bytes_at(path))


def note_pool(data_dir: Path, kept: KeptPool) -> None:
    """So that the next process asks for the same size, also when it is 'auto'. SegmentStartError when that can't be written."""
    scratch = data_dir / f"{_NOTE}.new"
    try:
        note = {"path": str(kept.path), "capacity_bytes": kept.capacity_bytes, "boot_id": kept.boot_id}
        scratch.write_text(json.dumps(note) + "\n")
        os.replace(scratch, data_dir / _NOTE)
    except OSError as error:
        raise SegmentStartError(cannot_write(data_dir, error)) from error


def moved_from(data_dir: Path, path: Path | None) -> dict[Path, int]:
    """The pool that this segment had elsewhere, before another pool_path or other huge pages, and that no process has: its size."""
    earlier = kept_pool(data_dir)
    if earlier is None or earlier.path == path:
        return {}
    with contextlib.suppress(OSError):
        status = os.lstat(earlier.path)
        if status.st_ino not in _locked_inodes():
            return {earlier.path: status.st_blocks * 512}
    return {}


def pools_left_behind(ours: Path) -> dict[Path, int]:
    """Pool files of this user beside `ours` that no process has: their sizes. Of segments whose data directory is gone, say."""
    locked = _locked_inodes()
    found: dict[Path, int] = {}
    with contextlib.suppress(OSError), os.scandir(ours.parent) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name) is None or entry.path == str(ours):
                continue
            with contextlib.suppress(OSError):  # it is gone now
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == os.geteuid() and status.st_ino not in locked:
                    found[Path(entry.path)] = status.st_blocks * 512
    return found


def _locked_inodes() -> set[int]:
    """Without trying a lock, which would keep a segment out that starts at this moment."""
    inodes: set[int] = set()
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if "FLOCK" in words:
                inodes.add(int(words[words.index("FLOCK") + 4].split(":")[2]))
    return inodes
