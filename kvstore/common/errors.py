"""Errors that cross module borders. Each text names what was wrong and what to do about it."""

from __future__ import annotations

from kvstore_client.protocol import Status


class KvstoreError(Exception):
    """Base of the server side's own errors."""


class RefusedError(KvstoreError):
    """A peer's request can't be done; `status` is the code to answer (docs/protocol.md section 2)."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


class StoreError(KvstoreError):
    """The metadata store failed, or was asked for something it can't do."""


class NewerFormatError(StoreError):
    """What is stored was written by a later release: it is neither read on nor changed (docs/upgrading.md)."""

    def __init__(self, what: str, found: int, known: int) -> None:
        super().__init__(
            f"{what} has format {found}, and this release reads format {known}: a later release of kvstore has written it. "
            "Nothing was changed. Run that release, or a later one; or start empty with another --metadata"
        )


class FencedError(StoreError):
    """Another master has taken over: this one must not write any more."""


class CorruptRecordError(KvstoreError):
    """A stored record whose envelope or checksum is wrong."""


class LimitTooLow(KvstoreError):
    """A limit of the process under which a server can't work."""


class CoreTaskEnded(KvstoreError):
    """A task that a server can't do without has ended: the process stops."""
