"""How many files, sockets among them, this process may have open."""

from __future__ import annotations

import logging
import resource

from kvstore.common.logs import log_event

logger = logging.getLogger(__name__)


def raise_file_limit(wanted: int, what_for: str) -> int:
    """Raises the limit as far as it may be, says so in the log when that is less than `wanted`; the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        log_event(
            logger,
            logging.WARNING,
            "file_limit_low",
            limit=soft,
            wanted=wanted,
            what_for=what_for,
            remedy="raise the hard limit of open files: `ulimit -Hn`, LimitNOFILE= of systemd, or the container runtime's; "
            "or lower connections_max",
        )
    return soft
