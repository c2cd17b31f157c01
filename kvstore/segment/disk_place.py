"""Where a segment's disk tier is, and whether an earlier process of the segment had one elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

from kvstore.segment.errors import SegmentStartError
from kvstore.segment.identity import cannot_write

_NOTE = "disk"


def disk_path_of(setting: str) -> str:
    """The path of the tier's file; empty for none. SegmentStartError when its directory is not there."""
    if setting in ("off", ""):
        return ""
    if not Path(setting).parent.is_dir():
        raise SegmentStartError(
            f"the disk tier {setting} can't be made: there is no directory {Path(setting).parent}; mount the disk, or set "
            "disk_path to a file on one that is there, or to off"
        )
    return setting


def had_disk_elsewhere(data_dir: Path, path: str) -> bool:
    """An earlier process has told the directory of pages on a disk that this one does not look at."""
    try:
        return (data_dir / _NOTE).read_text().strip() not in ("", path)
    except OSError:
        return False


def note_disk(data_dir: Path, path: str) -> None:
    """So that the next process knows. SegmentStartError when that can't be written."""
    note = data_dir / _NOTE
    if not path and not note.exists():
        return
    scratch = data_dir / f"{_NOTE}.new"
    try:
        scratch.write_text(path + "\n")
        os.replace(scratch, note)
    except OSError as error:
        raise SegmentStartError(cannot_write(data_dir, error)) from error
