"""How a command fails: a line on stderr for each thing that is wrong, what and how to fix it, and an exit code."""

from __future__ import annotations

import sys
from typing import NoReturn

EXIT_FAILED = 1
EXIT_USAGE = 2


def fail(*messages: str, code: int = EXIT_FAILED) -> NoReturn:
    """Ends the process with `messages` as its last lines on stderr."""
    for message in messages:
        print(f"kvstore: {' '.join(message.split())}", file=sys.stderr, flush=True)
    raise SystemExit(code)
