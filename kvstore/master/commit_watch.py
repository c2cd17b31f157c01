"""Whether commits go through. Nothing is written to find out: a probe would cost every idle cluster a revision a second on etcd. What
counts is how long the oldest work has waited while none was done."""

from __future__ import annotations


class CommitWatch:
    """Fed on each tick and after each commit. Reads no clock."""

    def __init__(self) -> None:
        self._waiting_since: float | None = None

    def looked(self, now: float, backlog_bytes: int) -> None:
        """So much waited to be committed at `now`."""
        if backlog_bytes == 0:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now

    def committed(self) -> None:
        """What still waits has waited since the next look."""
        self._waiting_since = None

    def stalled_s(self, now: float) -> float:
        """How long work has waited without any of it being done; 0: nothing waits, or commits go through."""
        return 0.0 if self._waiting_since is None else max(0.0, now - self._waiting_since)
