"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# What two busy cores may add to something that has to end by itself within a second or two. What is told apart by it is
# an end that waits for somebody who never answers.
BUSY_S = 3.0


def wait_until(condition: Callable[[], T], what: str, timeout_s: float = 15.0, poll_s: float = 0.02) -> T:
    """Polls until `condition()` is truthy and returns that.

    AssertionError naming `what` after `timeout_s`.
    """
    ends_at = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > ends_at:
            raise AssertionError(f"waited {timeout_s:g} s in vain: {what} (last: {value!r})")
        time.sleep(poll_s)
