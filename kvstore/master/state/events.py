"""What the state machine is told. Every event is handed over together with the time it happened at."""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.master.metadata.store import Op, SpaceLevel
from kvstore.master.state.changes import Change, Registration
from kvstore.master.state.layout import QuotaKind
from kvstore_client.protocol.link import LimitUse


@dataclass(frozen=True, slots=True)
class SegmentAttached:
    session: int  # number of the stream, never used again
    registration: Registration


@dataclass(frozen=True, slots=True)
class StreamLost:
    session: int


@dataclass(frozen=True, slots=True)
class SegmentLeaving:
    session: int
    reason: str


@dataclass(frozen=True, slots=True)
class SegmentAway:
    """Its process ends, and another one is to go on with its pool."""

    session: int
    reason: str


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    segment_id: bytes
    pool_id: bytes
    used_bytes: int
    object_count: int
    pinned_bytes: int = 0
    quarantined_slots: int = 0
    digest_mismatches: int = 0
    evicted_objects: int = 0
    limits: tuple[LimitUse, ...] = ()


@dataclass(frozen=True, slots=True)
class JournalReceived:
    session: int
    first_seq: int
    last_seq: int
    groups: bytes


@dataclass(frozen=True, slots=True)
class InventoryReceived:
    session: int
    last_seq: int
    groups: bytes
    first: bool
    last: bool


@dataclass(frozen=True, slots=True)
class DrainRequested:
    request: int  # number that the answer carries
    segment_id: bytes
    draining: bool


@dataclass(frozen=True, slots=True)
class NamespaceOpened:
    request: int  # number that the answer carries
    identity: bytes  # canonical
    name: str


@dataclass(frozen=True, slots=True)
class NamespaceBumped:
    request: int
    ns: bytes


@dataclass(frozen=True, slots=True)
class NamespaceForgotten:
    """An operator wants it removed, with all that it holds."""

    request: int
    ns: bytes


@dataclass(frozen=True, slots=True)
class QuotaRequested:
    """An operator wants one set, or removed (`limit_bytes` is None)."""

    request: int
    kind: QuotaKind
    subject: bytes
    limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class NamespacesRetired:
    """A segment serves nothing that was cleared up to this barrier."""

    session: int
    barrier: int


@dataclass(frozen=True, slots=True)
class LogRewritten:
    """A step of a compaction is to be stored: `ops` replace records by what is alive of them."""

    segment_id: bytes
    run: int
    ops: tuple[Op, ...]
    entries_before: int
    entries_after: int


@dataclass(frozen=True, slots=True)
class CompactionEnded:
    """All steps of it were told, or a record was found damaged."""

    segment_id: bytes
    run: int
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class CompactionFailed:
    segment_id: bytes
    run: int


@dataclass(frozen=True, slots=True)
class SpaceMeasured:
    """How full the metadata store is; `text` is for the operator. The rooms are what journals, and what frees space, may
    write until it is measured again; None: no bound."""

    level: SpaceLevel
    text: str
    journal_room_bytes: int | None = None
    upkeep_room_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    change: Change


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """It is not tried again. The outcome is unknown, and so is that of every change submitted after it and before
    this event."""

    change: Change
    error: str


@dataclass(frozen=True, slots=True)
class CommitStalled:
    """The store has refused a commit, which is tried again, with all that waits behind it; the first attempt failed
    `stalled_s` ago."""

    error: str
    stalled_s: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes; deadlines are looked at. It comes `late_s` later than it was meant to, and nothing was heard meanwhile."""

    late_s: float = 0.0


Event = (
    SegmentAttached
    | StreamLost
    | SegmentLeaving
    | SegmentAway
    | HeartbeatReceived
    | JournalReceived
    | InventoryReceived
    | DrainRequested
    | NamespaceOpened
    | NamespaceBumped
    | NamespaceForgotten
    | QuotaRequested
    | NamespacesRetired
    | LogRewritten
    | CompactionEnded
    | CompactionFailed
    | SpaceMeasured
    | Committed
    | CommitFailed
    | CommitStalled
    | Tick
)
