"""Limits of this process under which a server can't work at all: said before one of its libraries dies of them without a word."""

from __future__ import annotations

import resource

# gRPC ends the process by a signal where it can't have its own.
FILES_MIN = 64
# Threads, each with a stack, and the arenas that they allocate from.
ADDRESSES_MIN = 1 << 30


def limit_in_the_way(pool_bytes: int = 0) -> str:
    """Which limit is too low, its value and the remedy; empty when none is. `pool_bytes`: what is mapped beside."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < FILES_MIN:
        return (
            f"only {files} files may be open, and a server needs {FILES_MIN} at least, and one for each connection: raise the hard "
            "limit (ulimit -Hn, LimitNOFILE= of systemd)"
        )
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    needed = ADDRESSES_MIN + pool_bytes
    if addresses != resource.RLIM_INFINITY and addresses < needed:
        beside = f" beside its pool of {pool_bytes >> 20} MiB" if pool_bytes else ""
        return (
            f"RLIMIT_AS is {addresses >> 20} MiB: raise it (ulimit -v unlimited). A server needs {ADDRESSES_MIN >> 20} MiB of "
            f"addresses at least{beside}, and some for each connection"
        )
    return ""
