"""What a commit will have changed once it is durable: rides along with it and comes back in Committed or
CommitFailed.

`log` is the number of the segment's log: it changes when a segment starts anew, so that what was on its way
for the old log is recognised and ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.master.state.endpoint import Endpoint
from kvstore.master.state.layout import QuotaKind


@dataclass(frozen=True, slots=True)
class Registration:
    """What a segment says of itself when it attaches; its form has been checked."""

    endpoint: Endpoint
    last_seq: int
    oldest_kept_seq: int
    software_version: str = ""
    attached_from: str = ""  # the address that its stream comes from; empty: not known


@dataclass(frozen=True, slots=True)
class SegmentRegistered:
    segment_id: bytes
    log: int
    fresh: bool  # nothing of this log is durable before it


@dataclass(frozen=True, slots=True)
class DrainStored:
    segment_id: bytes
    log: int
    draining: bool
    was_draining: bool
    request: int  # number that the answer carries


@dataclass(frozen=True, slots=True)
class SegmentDropped:
    segment_id: bytes
    log: int


@dataclass(frozen=True, slots=True)
class JournalStored:
    segment_id: bytes
    log: int
    last_seq: int
    entries: int
    groups: bytes


@dataclass(frozen=True, slots=True)
class InventoryChunkStored:
    segment_id: bytes
    log: int
    generation: int
    chunk: int
    groups: bytes


@dataclass(frozen=True, slots=True)
class InventoryStored:
    segment_id: bytes
    log: int
    generation: int
    last_seq: int
    entries: int


@dataclass(frozen=True, slots=True)
class LogRewriteStored:
    """A step of a compaction: records with `entries_before` became one with `entries_after`."""

    segment_id: bytes
    log: int
    run: int
    entries_before: int
    entries_after: int


@dataclass(frozen=True, slots=True)
class NamespaceStored:
    identity: bytes
    epoch: int


@dataclass(frozen=True, slots=True)
class NamespaceRemoved:
    identity: bytes


@dataclass(frozen=True, slots=True)
class QuotaStored:
    """`limit_bytes`: None: there is none any more."""

    request: int
    kind: QuotaKind
    subject: bytes
    limit_bytes: int | None


Change = (
    SegmentRegistered
    | DrainStored
    | SegmentDropped
    | JournalStored
    | InventoryChunkStored
    | InventoryStored
    | LogRewriteStored
    | NamespaceStored
    | NamespaceRemoved
    | QuotaStored
)
SegmentChange = (
    SegmentRegistered
    | DrainStored
    | SegmentDropped
    | JournalStored
    | InventoryChunkStored
    | InventoryStored
    | LogRewriteStored
)
