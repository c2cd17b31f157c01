"""Who a segment is: a stable id that lives in its data directory, and a fresh pool id for each new memory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from pathlib import Path
from types import TracebackType

from kvstore.segment.errors import SegmentStartError

ID_BYTES = 16
_ID_FILE = "segment_id"
# The first format is the id alone. A later one begins with a line `format N`.
_FORMAT_LINE = re.compile(r"format (\d+)(?:\n|$)")
_LOCK_FILE = "lock"


_FULL = (errno.ENOSPC, errno.EDQUOT)


def cannot_write(data_dir: Path, error: OSError) -> str:
    """What an operator reads: why the data directory is of no use, and the remedy that fits."""
    if error.errno in _FULL:
        remedy = "free space there: a segment needs a few KiB, once"
    elif error.errno == errno.EFBIG:
        remedy = "raise RLIMIT_FSIZE (ulimit -f unlimited)"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        remedy = "raise the limit of open files (ulimit -n, LimitNOFILE= of systemd)"
    else:
        remedy = "choose a writable one with --data-dir"
    return f"data directory {data_dir} can't be used ({error.strerror}): {remedy}"


def new_pool_id() -> bytes:
    """16 random bytes; never zero, which stands for 'any' on the wire."""
    return os.urandom(ID_BYTES - 1) + b"\x01"


class SegmentIdentity:
    """Holds the data directory of one segment: `segment_id` is read or made there, and a lock keeps
    other processes out.

    The lock is the kernel's (flock), so it ends with the process however that dies.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._lock_fd = _lock(data_dir)
        try:
            self.segment_id = _read_or_make_id(data_dir / _ID_FILE)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Lets another process use the directory. Idempotent."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def __enter__(self) -> SegmentIdentity:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _lock(data_dir: Path) -> int:
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_fd = os.open(data_dir / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SegmentStartError(cannot_write(data_dir, error)) from error
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(lock_fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(lock_fd)
        raise SegmentStartError(
            f"data directory {data_dir} is locked by another segment (pid {holder}): "
            "stop it, or give this one its own directory with --data-dir"
        ) from error
    # For whoever finds it locked. Where there is no room for it the lock holds all the same.
    with contextlib.suppress(OSError):
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
    return lock_fd


def _make_id(path: Path) -> bytes:
    segment_id = new_pool_id()
    # Written aside and renamed: a crash in between leaves no half-written id.
    scratch = path.with_suffix(".new")
    with open(scratch, "w") as file:
        file.write(segment_id.hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)
    return segment_id


def _read_or_make_id(path: Path) -> bytes:
    try:
        if not path.exists():
            return _make_id(path)
        text = path.read_text(errors="replace").strip()
    except OSError as error:
        raise SegmentStartError(cannot_write(path.parent, error)) from error
    if (later := _FORMAT_LINE.match(text)) is not None:
        raise SegmentStartError(
            f"{path} has format {later[1]}, and this release reads format 1: a later release of kvstore has written it. "
            "Nothing was changed. Run that release, or give this segment its own directory with --data-dir"
        )
    try:
        segment_id = bytes.fromhex(text)
    except ValueError:
        segment_id = b""
    if len(segment_id) != ID_BYTES or not any(segment_id):
        raise SegmentStartError(
            f"{path} does not hold a segment id (32 hex digits): restore it, or delete it to become a new "
            "segment"
        )
    return segment_id
