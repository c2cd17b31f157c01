"""The time that one call of SGLang's may take, however many requests it leads to."""

import time


class Deadline:
    """Starts when it is made."""

    def __init__(self, deadline_ms: int) -> None:
        self._ends_at = time.monotonic() + deadline_ms / 1000

    @property
    def left_ms(self) -> int:
        """Whole milliseconds; 0 when it is over."""
        return max(0, int((self._ends_at - time.monotonic()) * 1000))
