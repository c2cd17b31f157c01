"""How much of a prefix can be restored when a model keeps state beside its KV pages: SGLang's hit policies, without
IO.

Flags are bytes of 0 and 1, one a page: byte p-1 speaks of the prefix of p pages. Work is per run of pages, not
per page: a prompt has up to 100,000 pages where a page is one token.
"""

from collections.abc import Iterator
from itertools import compress
from typing import Any, NamedTuple

ALL_PAGES = "all_pages"
TRAILING_PAGES = "trailing_pages"


class UnknownPolicyError(ValueError):
    """A hit policy whose rule is not known: no prefix is allowed by it."""


class HitReport(NamedTuple):
    """What a storage query answers."""

    hit_pages: int
    """Longest prefix that can be restored."""
    pool_pages: dict[Any, int]
    """Longest prefix by each pool alone; pools without any are left out."""
    restorable: list[int]
    """Every prefix length that can be restored, ascending: with window pools there are gaps."""


class HitQuery:
    """Folds the pools' answers into one report, starting from the anchor pool's leading run."""

    def __init__(self, anchor_name: Any, anchor_pages: int) -> None:
        self.anchor_pages = anchor_pages
        self._pool_pages: dict[Any, int] = {}
        self._flags = b"\1" * anchor_pages
        if anchor_pages:
            self._pool_pages[anchor_name] = anchor_pages

    @property
    def is_open(self) -> bool:
        """Whether any prefix is left that another pool could still allow."""
        return 1 in self._flags

    def add(self, name: Any, flags: bytes) -> None:
        """One pool's verdict on each prefix. ValueError unless it covers the anchor's pages."""
        if len(flags) != self.anchor_pages:
            raise ValueError(f"{len(flags)} verdicts came for {self.anchor_pages} prefixes")
        longest = flags.rfind(1) + 1
        if longest:
            self._pool_pages[name] = longest
        mask = int.from_bytes(self._flags, "big") & int.from_bytes(flags, "big")
        self._flags = mask.to_bytes(self.anchor_pages, "big")

    def report(self) -> HitReport:
        """The answer so far."""
        flags = self._flags
        return HitReport(
            flags.rfind(1) + 1, self._pool_pages, list(compress(range(1, len(flags) + 1), flags))
        )


def window_pages(keys: Any) -> int:
    """A window pool's transfer says by the number of its keys how many pages its window has; at least one."""
    return max(1, len(keys) if keys else 1)


def restorable_prefixes(present: bytes, policy: str, window: int) -> bytes:
    """Which prefixes a pool allows, from which of its pages are there (1) or not (0).

    ALL_PAGES: those without a hole. TRAILING_PAGES: those whose last `window` pages are there, or all of them
    where the prefix is shorter. UnknownPolicyError for another policy: of BLOCK_GROUPS SGLang 0.5.23 has the name but
    no user that would show which keys make up a group.
    """
    if policy == ALL_PAGES:
        hole = present.find(0)
        return present if hole < 0 else b"\1" * hole + bytes(len(present) - hole)
    if policy != TRAILING_PAGES:
        raise UnknownPolicyError(
            f"hit policy {policy!r} is not known, so no prefix is restored with this pool"
        )
    flags = bytearray(len(present))
    for start, end in _runs(present):
        first = start if start == 0 else start + window - 1
        if first < end:
            flags[first:end] = b"\1" * (end - first)
    return bytes(flags)


def _runs(present: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of each stretch of pages that are there."""
    start = present.find(1)
    while start >= 0:
        hole = present.find(0, start)
        end = len(present) if hole < 0 else hole
        yield start, end
        start = present.find(1, end)
