"""Runs a command in a network namespace of its own, where nobody but it hears or speaks on the loopback.

usage: own_network.py COMMAND...

Two runs of the tests at a time, or a stranger that tries every port, then have nothing to do with each other. Needs root or
a kernel that lets users make namespaces; where neither is there, the command runs in the network that all share, after one
line that says so. The command keeps its user, its rights and its files; there is no way out to any other network.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1


def unshare(flags: int) -> None:
    """Moves this process (it must have one thread) into new namespaces. OSError where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def enter_own_network() -> None:
    """OSError where that is not allowed; then nothing has changed."""
    try:
        unshare(CLONE_NEWNET)
    except PermissionError:
        user, group = os.getuid(), os.getgid()
        unshare(CLONE_NEWUSER | CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        (flags,) = struct.unpack_from("H", request, 16)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        enter_own_network()
    except OSError as error:
        print(f"in the network that all share, for want of one of our own: {error}", file=sys.stderr)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        sys.exit(f"{sys.argv[1]}: {error.strerror}")


if __name__ == "__main__":
    main()
