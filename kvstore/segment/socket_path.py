"""Where a segment's unix socket lies: a private directory, a name per segment, within the kernel's length
limit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from kvstore.common.logs import log_event
from kvstore.segment.errors import SegmentStartError

logger = logging.getLogger(__name__)

# sizeof(sockaddr_un.sun_path) - 1 on Linux: the terminating zero counts too.
UNIX_PATH_BYTES_MAX = 107
CHECK_INTERVAL_S = 1.0


def default_unix_path(segment_id: bytes) -> Path:
    """`$XDG_RUNTIME_DIR/kvstore/<id>.sock`, or under `/tmp/kvstore-<uid>` where there is no runtime
    directory.
    """
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR", "")
    base = Path(runtime_dir) / "kvstore" if runtime_dir else Path(f"/tmp/kvstore-{os.getuid()}")
    return base / f"segment-{segment_id.hex()[:16]}.sock"


def prepare_unix_path(path: Path, private: bool) -> None:
    """Makes the directory (0700) and clears away the socket of a dead process.

    With `private` the directory must be this user's own: the default lies under a shared /tmp, where somebody
    else may have made it first and could then swap the socket. A path that the operator chose is taken as it
    is.
    """
    path_bytes = len(os.fsencode(path))
    if path_bytes > UNIX_PATH_BYTES_MAX:
        raise SegmentStartError(
            f"unix socket path {path} is {path_bytes} bytes long, the limit is {UNIX_PATH_BYTES_MAX}: "
            "give a shorter one with --unix-path"
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.parent.lstat()
    except OSError as error:
        raise SegmentStartError(
            f"directory {path.parent} of the unix socket can't be made ({error.strerror}): give another "
            "--unix-path"
        ) from error
    if private and (not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o022):
        raise SegmentStartError(
            f"{path.parent} is not a directory that only this user (uid {os.getuid()}) can write: "
            "give another --unix-path"
        )
    if path.is_socket():
        _clear_stale_socket(path)
    elif path.exists():
        raise SegmentStartError(f"{path} exists and is not a socket: remove it or give another --unix-path")


def _clear_stale_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass  # somebody listens and takes nobody: a process that is stopped, or has more to do than it can
    raise SegmentStartError(
        f"unix socket {path} is in use by a running process: stop it or give another --unix-path"
    )


async def keep_unix_path(
    path: Path, private: bool, remake: Callable[[], None], interval_s: float = CHECK_INTERVAL_S
) -> None:
    """Until it is cancelled: has the socket made anew (`remake`) when its file is gone.

    What cleans up /tmp takes sockets that nobody has touched for days, and then no new client finds the way past TCP.
    """
    ours = _file_id(path)
    complaint = ""
    while True:
        await asyncio.sleep(interval_s)
        there = _file_id(path)
        if there is not None and there == ours:
            continue
        try:
            prepare_unix_path(path, private)
            await asyncio.to_thread(remake)
        except (SegmentStartError, OSError) as error:
            if str(error) != complaint:
                log_event(logger, logging.WARNING, "unix_socket_lost", path=str(path), reason=str(error))
            complaint = str(error)
            continue
        ours, complaint = _file_id(path), ""
        log_event(logger, logging.WARNING, "unix_socket_remade", path=str(path))


def _file_id(path: Path) -> tuple[int, int] | None:
    """Of the file itself, whatever name it has; None where there is none."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
