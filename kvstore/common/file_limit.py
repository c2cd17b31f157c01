"""How many descriptors, sockets among them, this process may have open, and how they are shared out.

Connections of clients are what grows. They get what is left after a reserve for everything that must go on when they are too many:
the status page, the control port, the store and the log, and the connections that are taken only to be told no.
"""

from __future__ import annotations

import logging
import os
import resource

from kvstore.common.logs import log_event

logger = logging.getLogger(__name__)

# At least so many descriptors are for everything but clients; of a larger limit a share, up to the most.
RESERVE_MIN = 128
RESERVE_SHARE = 4
RESERVE_MAX = 32_768


def raise_file_limit() -> int:
    """Raises the limit as far as it may be; what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return file_limit()


def file_limit() -> int:
    """The limit of now; a very large number where there is none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def open_files() -> int:
    """How many descriptors are in use."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # without the one that looks
    except OSError:  # there is none left to look with
        return file_limit()


def need_files(count: int) -> None:
    """OSError when fewer descriptors are left: for a library that ends the process where it can't have its own."""
    had: list[int] = []
    try:
        while len(had) < count:
            had.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        remedy = "raise the limit of open files (ulimit -Hn, LimitNOFILE= of systemd)"
        raise OSError(error.errno, f"fewer than {count} descriptors are left, {remedy}") from None
    finally:
        for descriptor in had:
            os.close(descriptor)


def connections_that_fit(limit: int, wanted: int, refused_at_a_time: int) -> int:
    """How many of the `wanted` connections clients may have under `limit`, at least one. `refused_at_a_time` more may be open while
    they are told no. Says so in the log when it is less than `wanted`."""
    reserve = _reserve(limit)
    fit = max(1, min(wanted, limit - reserve - refused_at_a_time))
    if fit < wanted:
        log_event(
            logger,
            logging.WARNING,
            "file_limit_low",
            limit=limit,
            connections_max=wanted,
            lowered_to=fit,
            remedy=f"raise the hard limit of open files to {files_for(wanted, refused_at_a_time)} at least: `ulimit -Hn`, "
            "LimitNOFILE= of systemd, or the container runtime's; or lower connections_max",
        )
    return fit


def control_connections_max(limit: int) -> int:
    """How many gRPC connections of segments, masters and tools may be open under `limit`: a third of the reserve."""
    return _reserve(limit) // 3


def links_max(limit: int) -> int:
    """How many links of segments, and peers that have not greeted yet: a quarter of the reserve. The rest of it is for the store,
    the log and the status page."""
    return _reserve(limit) // 4


def _reserve(limit: int) -> int:
    return min(max(RESERVE_MIN, limit // RESERVE_SHARE), RESERVE_MAX)


def files_for(connections: int, refused_at_a_time: int) -> int:
    """The limit under which so many connections fit."""
    needed = connections + refused_at_a_time
    by_share = -(-needed * RESERVE_SHARE // (RESERVE_SHARE - 1))
    return min(max(needed + RESERVE_MIN, by_share), needed + RESERVE_MAX)
