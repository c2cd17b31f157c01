"""How a command fails: a line on stderr for each thing that is wrong, what and how to fix it, and an exit code."""

from __future__ import annotations

from typing import NoReturn

from kvstore.common.logs import tell

EXIT_FAILED = 1
EXIT_USAGE = 2


def fail(*messages: str, code: int = EXIT_FAILED) -> NoReturn:
    """Ends the process with `messages` as its last lines on stderr."""
    for message in messages:
        tell(f"kvstore: {' '.join(message.split())}")
    raise SystemExit(code)
