"""The directory of the embedded store: what lies in it, which release may use it, and what to do when it can't be used.

CURRENT, MANIFEST-*, *.sst ...   RocksDB
commits/                         the commit log, and the lock of the master that runs on it
FORMAT                           the version of this layout; a directory without it is of version 1, RocksDB alone
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from kvstore.common.errors import NewerFormatError, StoreError

# Of the layout. Version 2: what is committed is durable in commits/ first.
FORMAT_VERSION = 2
_FORMAT_FILE = "FORMAT"
_FORMAT_TEXT = re.compile(r"kvstore metadata ([0-9]{1,9})\n")

COSTS_WARM_PAGES_ONLY = (
    "Removing the directory loses warm pages and nothing else: every segment tells what it has when it attaches, and old "
    "namespaces begin anew"
)

PROCESS_ENDED = "the process of RocksDB has ended"
FREE_SPACE = "Free space on that disk, or raise the quota"
FILE_LIMIT = "Raise RLIMIT_FSIZE (ulimit -f unlimited)"


def commits_directory(path: Path) -> Path:
    return path / "commits"


def prepare_directory(path: Path) -> None:
    """Makes the directory if it is not there; blocks. Raises StoreError when it can't be used, and then has touched nothing."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        version = stored_version(path)
    except OSError as error:
        raise unusable(path, str(error)) from error
    if version > FORMAT_VERSION:
        raise NewerFormatError(f"the metadata directory {path}", version, FORMAT_VERSION)


def stored_version(path: Path) -> int:
    """Raises OSError, or StoreError for a file that says no version."""
    try:
        text = (path / _FORMAT_FILE).read_text(errors="replace")
    except FileNotFoundError:
        return 1
    if not text:
        return 1  # a crash between its making and its writing
    found = _FORMAT_TEXT.fullmatch(text)
    if found is None:
        raise StoreError(
            f"{path / _FORMAT_FILE} says no format version: restore it (this release writes "
            f"{format_text()!r}), or remove the directory. {COSTS_WARM_PAGES_ONLY}"
        )
    return int(found[1])


def format_text() -> str:
    return f"kvstore metadata {FORMAT_VERSION}\n"


def write_version(path: Path) -> None:
    """Durable on return; blocks. Raises OSError."""
    if stored_version(path) == FORMAT_VERSION:
        return
    fresh = path / (_FORMAT_FILE + ".new")
    with fresh.open("w") as file:
        file.write(format_text())
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path / _FORMAT_FILE)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def occupied_bytes(path: Path) -> int:
    """Of all files; blocks. Raises OSError, also when the directory itself was removed."""
    total = 0
    path.stat()
    for directory in (path, commits_directory(path)):
        try:
            for entry in os.scandir(directory):
                try:
                    if entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    pass  # RocksDB has just removed it
        except FileNotFoundError:
            pass  # not there yet
    return total


def unusable(path: Path, why: str) -> StoreError:
    """What an operator reads: which directory, why, and the remedy that fits."""
    what_helps = _what_gives_space(why) + ", and start it again" if is_out_of_space(why) else remedy(why)
    return StoreError(f"can't open the metadata store in {path}: {why}. {what_helps}")


def in_use(path: Path, holder: str) -> StoreError:
    return StoreError(
        f"the metadata store in {path} is in use by another master ({holder}). Stop that one, or give this one a directory of "
        "its own; several masters that share a store need etcd"
    )


def is_out_of_space(why: str) -> bool:
    return any(os.strerror(code) in why for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def _what_gives_space(why: str) -> str:
    return FILE_LIMIT if os.strerror(errno.EFBIG) in why else FREE_SPACE


def remedy(why: str) -> str:
    if is_out_of_space(why):
        return _what_gives_space(why) + ": the master goes on by itself then"
    for code, text in _REMEDIES.items():
        if os.strerror(code) in why:
            return text
    if PROCESS_ENDED in why:
        return "It is started again by itself, and nothing is lost. If it was killed: is memory short (the kernel's log names what it kills)?"
    if "lock" in why.lower() and "LOCK" in why:
        return "Another process has it open: stop that one"
    if any(word in why for word in ("Corruption", "corrupt", "MANIFEST", "CURRENT", ".sst")):
        return f"Its files are damaged: restore them from a backup, or remove the directory and start again. {COSTS_WARM_PAGES_ONLY}"
    return f"If nothing else helps, remove the directory and start again. {COSTS_WARM_PAGES_ONLY}"


_REMEDIES = {
    errno.EAGAIN: "Another process has it open: stop that one",
    errno.EACCES: "Give the user of the master the right to read and write it, or give a directory that is its own",
    errno.EPERM: "Give the user of the master the right to read and write it, or give a directory that is its own",
    errno.EROFS: "The file system is mounted read-only: mount it writable, or give a directory elsewhere",
    errno.ENOENT: (
        "The directory, or a file in it, was removed or replaced while the master ran: move it back, and the master goes on; "
        f"if it is gone for good, restart the master, and its segments after it. {COSTS_WARM_PAGES_ONLY}"
    ),
    errno.ENOTDIR: "A file is where a directory should be: give another path, or move the file away",
    errno.EEXIST: "A file is where the directory should be: give another path, or move the file away",
    errno.EIO: "The disk fails: look at the kernel's log, and give a directory on another disk",
    errno.EMFILE: "Raise the limit of open files (ulimit -n)",
}
