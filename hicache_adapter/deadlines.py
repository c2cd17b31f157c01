"""How long a call of SGLang's may take: by what it carries, and by who waits for it."""

import threading
import time
from collections.abc import Callable

from hicache_adapter.config import CALL_MS_MAX, AdapterConfig

_MIB = 1 << 20


class Deadline:
    """The time of one call, however many requests it leads to. Starts when it is made.

    A call that carries much may take longer than `stall_ms`, but not stall for longer: one to a store that
    hangs ends as early as one that carries nothing.
    """

    def __init__(self, deadline_ms: int, stall_ms: int | None = None) -> None:
        """`stall_ms`: the whole deadline unless given."""
        self.stall_ms = deadline_ms if stall_ms is None else min(stall_ms, deadline_ms)
        self._ends_at = time.monotonic() + deadline_ms / 1000

    @property
    def left_ms(self) -> int:
        """Whole milliseconds; 0 when it is over."""
        return max(0, int((self._ends_at - time.monotonic()) * 1000))

    @property
    def short_left_ms(self) -> int:
        """The same for a request that carries nothing."""
        return min(self.left_ms, self.stall_ms)


class Deadlines:
    """Makes the deadlines of one backend. `this_thread`: who calls.

    The thread that attaches the backend is SGLang's scheduler: whatever waits there keeps the whole engine from its next
    step. A decode instance asks for hits on it.
    """

    def __init__(self, config: AdapterConfig, this_thread: Callable[[], int] = threading.get_ident) -> None:
        self._base_ms = config.client.deadline_ms
        self._scheduler_ms = min(config.scheduler_deadline_ms, self._base_ms)
        self._bytes_a_ms = config.floor_rate_mib_s * _MIB / 1000
        self._this_thread = this_thread
        self._scheduler = this_thread()

    def short(self) -> Deadline:
        """Of a call that carries no pages."""
        return Deadline(self._base_ms)

    def query(self) -> Deadline:
        """Of a question that the scheduler may wait for itself."""
        return Deadline(self._scheduler_ms if self.on_scheduler else self._base_ms)

    @property
    def on_scheduler(self) -> bool:
        """Whether the scheduler waits for this call."""
        return self._this_thread() == self._scheduler

    def carrying(self, size_bytes: int) -> Deadline:
        """Of a call that moves so many bytes."""
        whole_ms = self._base_ms + int(size_bytes / self._bytes_a_ms)
        return Deadline(min(whole_ms, CALL_MS_MAX), stall_ms=self._base_ms)
