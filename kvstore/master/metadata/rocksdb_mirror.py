"""Directories in memory with links to RocksDB's files: rocksdict writes a file of its own even where it only reads.

A mirror belongs to the process that has made it, which holds a lock on it: the kernel lets go of that however the process ends.
What nobody holds is removed by the next one that starts, for whichever directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator

LOCKED_MARK = "locked-"
_TRIES = 16
# What every database has: that of a mirror whose directory is gone leads nowhere.
_ALWAYS_THERE = "CURRENT"


def mirrored(path: str, base: str | None = None) -> str:
    """A new mirror of the directory, which is this process's until it ends. OSError when there can be none."""
    for _ in range(_TRIES):
        mirror = tempfile.mkdtemp(prefix=_prefix(path) + LOCKED_MARK, dir=base or _base())
        if not _is_kept(mirror):
            continue  # another process saw it before it was locked, and has removed it
        for entry in os.scandir(path):
            if entry.is_file() and entry.name not in ("LOCK", "rocksdict-config.json"):
                os.symlink(entry.path, os.path.join(mirror, entry.name))
        return mirror
    raise OSError(errno.EBUSY, f"{_TRIES} mirrors were removed by other processes while they were made", path)


def remove_mirrors(path: str, base: str | None = None) -> None:
    """Of this directory, and of any other one those whose processes are gone. `path` must be this process's alone."""
    for mirror in _own_mirrors(base or _base()):
        with contextlib.suppress(OSError):
            _remove_unless_held(mirror, os.path.basename(mirror).startswith(_prefix(path)))


def remove_mirror(mirror: str) -> None:
    """One that this process has made."""
    shutil.rmtree(mirror, ignore_errors=True)


def _is_kept(mirror: str) -> bool:
    """Holds the mirror until this process ends. False: it is gone."""
    try:
        descriptor = os.open(
            mirror, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        )  # never closed where it is kept
    except FileNotFoundError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # whoever has it removes it, and is done in a moment
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.stat(mirror, follow_symlinks=False), os.fstat(descriptor)):
            return True
    os.close(descriptor)
    return False


def _remove_unless_held(mirror: str, is_of_this_directory: bool) -> None:
    descriptor = os.open(mirror, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        # Releases before held no lock: theirs may be in use as long as its links lead somewhere.
        locks = LOCKED_MARK in os.path.basename(mirror)
        if locks or is_of_this_directory or not os.path.exists(os.path.join(mirror, _ALWAYS_THERE)):
            shutil.rmtree(mirror, ignore_errors=True)
    finally:
        os.close(descriptor)


def _own_mirrors(base: str) -> Iterator[str]:
    for entry in os.scandir(base):
        try:
            is_own = entry.stat(follow_symlinks=False).st_uid == os.getuid()
        except FileNotFoundError:
            continue  # another process was faster
        if is_own and entry.name.startswith(_prefix()) and entry.is_dir(follow_symlinks=False):
            yield entry.path


def _base() -> str:
    return "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()


def _prefix(path: str | None = None) -> str:
    of_user = f"kvstore-rocksdb-{os.getuid()}-"
    return of_user if path is None else f"{of_user}{zlib.crc32(path.encode()):08x}-"
