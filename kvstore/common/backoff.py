"""Jittered exponential back-off: many segments that lost one master must not come back in step."""

from __future__ import annotations

import random


class Backoff:
    """Delays between attempts: they double from `delay_s_min` to `delay_s_max`, each drawn from its upper
    half.
    """

    def __init__(
        self, delay_s_min: float = 0.05, delay_s_max: float = 2.0, rng: random.Random | None = None
    ) -> None:
        if not 0 < delay_s_min <= delay_s_max:
            raise ValueError(f"need 0 < delay_s_min <= delay_s_max, not {delay_s_min} and {delay_s_max}")
        self._delay_s_min = delay_s_min
        self._delay_s_max = delay_s_max
        self._ceiling_s = delay_s_min
        self._rng = rng or random.Random()

    def next_delay_s(self) -> float:
        """How long to wait before the next attempt."""
        ceiling_s = self._ceiling_s
        self._ceiling_s = min(ceiling_s * 2, self._delay_s_max)
        return ceiling_s * self._rng.uniform(0.5, 1.0)

    def limit(self, delay_s_max: float) -> None:
        """There is reason to hope: the next delay is at most this."""
        self._ceiling_s = max(self._delay_s_min, min(self._ceiling_s, delay_s_max))

    def reset(self) -> None:
        """An attempt worked: the next failure begins with the shortest delay."""
        self._ceiling_s = self._delay_s_min
