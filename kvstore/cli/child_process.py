"""What a server command does when another process started it: announce itself, and never outlive its
parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Annotated, Any

import typer

_PR_SET_PDEATHSIG = 1

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print a line of JSON with the bound addresses once they are bound.")
]
ParentOption = Annotated[
    int, typer.Option("--parent-pid", hidden=True, help="End at once when this process, our parent, ends.")
]


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process when its parent ends, however that ends. 0 does nothing."""
    if parent_pid == 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have died before the call: then nothing would ever kill us.
    if os.getppid() != parent_pid:
        raise SystemExit(f"kvstore: parent process {parent_pid} is gone")


def announce(event: str, **facts: Any) -> None:
    """One line of JSON on stdout for whoever started us; a reader that is gone is no reason to stop
    serving.
    """
    try:
        # One write, its end included: where the log goes to the same file, a line of it would come between the two.
        sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):
        # Python flushes stdout again at exit, and would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
