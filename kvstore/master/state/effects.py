"""What the state machine wants done. Effects are carried out in order, after the handler has returned."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvstore.master.metadata.store import Op
from kvstore.master.state.changes import Change
from kvstore.master.state.layout import Snapshot
from kvstore_client.protocol import Status


@dataclass(frozen=True, slots=True)
class Commit:
    """Make `ops` durable, atomically and after every commit before it; then report `change`."""

    ops: tuple[Op, ...]
    change: Change


@dataclass(frozen=True, slots=True)
class AcceptSegment:
    session: int
    segment_index: int
    durable_seq: int
    need_inventory: bool


@dataclass(frozen=True, slots=True)
class AckJournal:
    session: int
    durable_seq: int


@dataclass(frozen=True, slots=True)
class RequestInventory:
    session: int


@dataclass(frozen=True, slots=True)
class RefuseEntries:
    """Tell the segment that `entries` of the message that ended with `last_seq` were not taken."""

    session: int
    last_seq: int
    entries: int
    reason: str


@dataclass(frozen=True, slots=True)
class CloseSession:
    session: int
    status: Status
    reason: str


@dataclass(frozen=True, slots=True)
class BroadcastMap:
    """The segment map has a new epoch."""


@dataclass(frozen=True, slots=True)
class RetireNamespaces:
    """Tell every segment that objects of these namespaces are dead, and to confirm the barrier."""

    namespaces: tuple[bytes, ...]
    barrier: int


@dataclass(frozen=True, slots=True)
class NamespaceReady:
    request: int
    ns: bytes
    epoch: int


@dataclass(frozen=True, slots=True)
class NamespaceGone:
    request: int


@dataclass(frozen=True, slots=True)
class QuotaReady:
    request: int


@dataclass(frozen=True, slots=True)
class DrainReady:
    request: int


@dataclass(frozen=True, slots=True)
class RequestRefused:
    request: int
    status: Status
    text: str


@dataclass(frozen=True, slots=True)
class SweepIndex:
    """Free the index entries that are doomed, a few at a time; no hurry."""


@dataclass(frozen=True, slots=True)
class CompactLog:
    """Rewrite a segment's log up to through_seq with what is alive in it (`log_rewrite`), and tell of each step
    (LogRewritten) and of the end; no hurry."""

    segment_id: bytes
    run: int
    segment_index: int
    snapshot: Snapshot
    through_seq: int


@dataclass(frozen=True, slots=True)
class CompactionStepStored:
    """A step is durable, or will never be: the next one may be told."""

    segment_id: bytes
    run: int


@dataclass(frozen=True, slots=True)
class MeasureSpace:
    """Much was written since the store was last measured."""


@dataclass(frozen=True, slots=True)
class Report:
    """Something worth a counter and a log line."""

    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    level: int = logging.WARNING
    throttle_key: str | None = (
        None  # whose doing it is, when it may come again and again: a line a minute then
    )


SessionEffect = AcceptSegment | AckJournal | RequestInventory | RefuseEntries | CloseSession
Effect = (
    Commit
    | SessionEffect
    | BroadcastMap
    | RetireNamespaces
    | NamespaceReady
    | NamespaceGone
    | QuotaReady
    | DrainReady
    | RequestRefused
    | SweepIndex
    | CompactLog
    | CompactionStepStored
    | MeasureSpace
    | Report
)
