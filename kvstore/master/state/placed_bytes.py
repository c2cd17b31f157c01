"""What was placed on one segment and has not been heard of since: it is on its way, or was given up."""

from __future__ import annotations

from collections import deque

# A put that has not come after so long was given up, or went elsewhere: clients give a call seconds.
ON_THE_WAY_S = 10.0
# What was placed within so long of each other is given up together: so many sums are kept at most.
_TOGETHER_S = 0.25


class PlacedBytes:
    """Bytes by when they were placed, at most ON_THE_WAY_S / 0.25 s + 2 sums of them."""

    __slots__ = ("_sums", "total")

    def __init__(self) -> None:
        self._sums: deque[list[float]] = deque()  # [when the first of them was placed, bytes], oldest first
        self.total = 0

    def placed(self, now: float, size_bytes: int) -> None:
        self.expire(now)
        if self._sums and now - self._sums[-1][0] < _TOGETHER_S:
            self._sums[-1][1] += size_bytes
        else:
            self._sums.append([now, size_bytes])
        self.total += size_bytes

    def arrived(self, size_bytes: int) -> None:
        """So much has come to lie there: what was placed first, as far as anybody can tell."""
        while size_bytes > 0 and self._sums:
            here = min(size_bytes, int(self._sums[0][1]))
            self._sums[0][1] -= here
            self.total -= here
            size_bytes -= here
            if self._sums[0][1] <= 0:
                self._sums.popleft()

    def expire(self, now: float) -> None:
        while self._sums and now - self._sums[0][0] >= ON_THE_WAY_S:
            self.total -= int(self._sums.popleft()[1])
