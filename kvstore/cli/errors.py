"""How a command fails: one line on stderr that says what and how to fix it, and an exit code."""

from __future__ import annotations

import sys
from typing import NoReturn

from pydantic import ValidationError

EXIT_FAILED = 1
EXIT_USAGE = 2


def fail(message: str, code: int = EXIT_FAILED) -> NoReturn:
    """Ends the process with `message` as its last line on stderr."""
    print(f"kvstore: {' '.join(message.split())}", file=sys.stderr, flush=True)
    raise SystemExit(code)


def describe_invalid(error: ValidationError, option_of: dict[str, str]) -> str:
    """The first fault of a settings object in one line, in terms of the option it came from."""
    fault = error.errors()[0]
    field = str(fault["loc"][0]) if fault["loc"] else ""
    text = fault["msg"].removeprefix("Value error, ")
    return f"{option_of[field]}: {text}" if field in option_of else text
