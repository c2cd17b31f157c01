"""Errors that stop a segment from starting; each names what is wrong and the remedy."""

from __future__ import annotations

from kvstore.common.errors import KvstoreError


class SegmentStartError(Exception):
    """The segment can't start. The text is one line: what is wrong, with its numbers, and how to fix it."""


class PoolLost(KvstoreError):
    """Somebody has taken memory of the pool away: the process ends."""


class RegistrationRefused(Exception):
    """A master answered the registration with a refusal that a retry at once would not change."""


class LinkLost(Exception):
    """The link to the master is over. `kind` is one word, the same for the same cause."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class ClusterChanged(Exception):
    """A master belongs to another cluster than the pool's pages, or has lost its records: what the pool holds means
    nothing there.
    """

    def __init__(self, theirs: str, ours: str) -> None:
        super().__init__(f"the master is of cluster {theirs}, the pages of this segment of {ours}")
