"""What happened in a run, line by line, and a digest of it all: two runs are the same when their digests are."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable

KEPT_MAX = 100_000


class EventLog:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._lines: deque[str] = deque(maxlen=KEPT_MAX)
        self._hash = hashlib.sha256()
        self.count = 0
        self.events: Counter[str] = Counter()  # what the product reports, by name

    def event(self, actor: str, name: str) -> None:
        """Something that has a name, so that it can be counted."""
        self.events[name] += 1
        self.say(actor, name)

    def say(self, actor: str, text: str) -> None:
        line = f"{self._clock() - self._began:10.6f} {actor:<10} {text}"
        self._hash.update(line.encode())
        self._lines.append(line)
        self.count += 1

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def all(self) -> list[str]:
        """What is kept, KEPT_MAX lines at most."""
        return list(self._lines)

    def last(self, count: int) -> list[str]:
        """The newest `count` lines."""
        return list(self._lines)[-count:]
