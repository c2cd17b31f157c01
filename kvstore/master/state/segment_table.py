"""What the master knows of each segment. Plain data with its invariants; `membership` and `segment_logs`
decide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvstore.master.state.changes import Registration
from kvstore.master.state.layout import SegmentRecord, Snapshot
from kvstore.master.state.segment_indexes import SegmentIndexes
from kvstore_client.protocol import MapRecord, SegmentState
from kvstore_client.protocol.link import LimitUse


@dataclass(slots=True)
class InventoryProgress:
    """An inventory that is coming in: its chunks become a snapshot of this generation."""

    generation: int
    last_seq: int
    chunks: int = 0
    entries: int = 0


@dataclass(slots=True)
class CompactionProgress:
    run: int  # its number
    logged_entries: int  # when it began
    commits_pending: int = 0
    ended: bool = False  # all of it is submitted


@dataclass(slots=True)
class Segment:
    """One segment and its memory: a segment that comes back with a new pool id gets a new index and a new
    log."""

    segment_id: bytes
    record: SegmentRecord
    log: int
    state: SegmentState = SegmentState.SUSPECT
    drain_request: int | None = None  # who asked for the `draining` that is being stored

    # The stream of now; `registered` once its registration is durable and answered.
    session: int | None = None
    registered: bool = False
    recorded: bool = False  # `record` is durable
    registrations_pending: int = 0  # commits of `record`, or of what it was, on their way
    said: Registration | None = None  # of the newest stream
    away: bool = False  # it said so; its stream of now is about to end
    barrier: int | None = None  # of `clear` (barriers.py), as confirmed on the stream of now

    # Journal: durable_seq <= accepted_seq. What lies between is on its way into the store.
    durable_seq: int = 0
    accepted_seq: int = 0
    stream_seq: int = (
        0  # how far the stream of now has told and been told: nothing beyond it is acknowledged on it
    )
    logged_entries: int = 0  # entries in the store, dead ones too
    next_generation: int = 1
    damaged: bool = False  # records of the log were lost: only an inventory can make it whole
    awaiting_inventory: bool = False
    inventory: InventoryProgress | None = None
    compaction: CompactionProgress | None = None
    compaction_after: float = 0.0  # not before; after one that failed
    compaction_failures: int = 0  # since the last that did not
    replaces: tuple[int, ...] = ()  # indexes that durable records name until this one's does its own
    removed: bool = False  # that it is gone is durable
    challenger: str = ""  # address of another segment that came with the same id, and was refused
    challenged_at: float = float("-inf")
    durable_snapshot: Snapshot = field(
        default_factory=Snapshot
    )  # while the record may name one that is on its way
    held_back: bool = (
        False  # something it sent was not taken because the store is full: it has to attach again
    )

    # Clocks: of the moments that decide.
    heard_at: float = 0.0
    alive_at: float = float(
        "-inf"
    )  # the last real sign of life since the stream of now, or since the last one broke
    # Until then one that has not been heard (since a master restarted, or since its stream broke) may be about to speak up.
    claimed_until: float = float("-inf")
    vouched: bool = False  # the index counts what it holds as there when new objects are placed
    fresh_since: float = 0.0  # when this memory joined, for slow start
    suspect_since: float = 0.0
    recovering_until: float | None = (
        None  # served after a restart of the master though it has not attached yet
    )

    # As the segment reports; the last three count since its start.
    used_bytes: int = 0
    object_count: int = 0
    pinned_bytes: int = 0
    quarantined_slots: int = 0
    digest_mismatches: int = 0
    evicted_objects: int = 0
    limits: tuple[LimitUse, ...] = ()  # in the order of LIMITS
    evicted_at: float = float("-inf")  # when that was last seen to grow

    @property
    def software_version(self) -> str:
        return self.said.software_version if self.said is not None else ""

    @property
    def attached_from(self) -> str:
        return self.said.attached_from if self.said is not None else ""

    @property
    def index(self) -> int:
        return self.record.index

    @property
    def serving(self) -> bool:
        return self.state in (SegmentState.LIVE, SegmentState.DRAINING)

    @property
    def placeable(self) -> bool:
        return self.state is SegmentState.LIVE and self.registered

    def map_record(self) -> MapRecord:
        return self.record.endpoint.map_record(self.index, self.state, self.used_bytes)


class SegmentTable:
    """Segments by id and by stream. Log numbers only ever count up."""

    def __init__(self, indexes: SegmentIndexes) -> None:
        self._by_id: dict[bytes, Segment] = {}
        self._by_session: dict[int, Segment] = {}
        self.indexes = indexes
        self._next_log = 1

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, segment_id: bytes) -> Segment | None:
        return self._by_id.get(segment_id)

    def of_session(self, session: int) -> Segment | None:
        return self._by_session.get(session)

    def create(self, segment_id: bytes, record: SegmentRecord) -> Segment:
        """A segment with nothing in it; replaces one of the same id. Its index comes from `indexes`."""
        old = self._by_id.get(segment_id)
        self.forget(segment_id)
        segment = Segment(segment_id, record, self._next_log)
        if old is not None:
            # An inventory that was given up may have left chunks of its generation: never use that one again.
            segment.next_generation = old.next_generation
            segment.replaces = old.replaces if old.removed else (*old.replaces, old.index)
        self._next_log += 1
        self._by_id[segment_id] = segment
        return segment

    def bind(self, segment: Segment, session: int) -> None:
        assert segment.session is None, "the older stream is released first"
        segment.session = session
        segment.registered = False
        self._by_session[session] = segment

    def release(self, segment: Segment) -> None:
        """Takes the stream off the segment, with what was coming in on it."""
        if segment.session is not None:
            del self._by_session[segment.session]
        segment.session = None
        segment.registered = False
        segment.alive_at = float("-inf")  # its end of the stream may be dead
        segment.barrier = None
        segment.held_back = False
        segment.awaiting_inventory = False
        segment.inventory = None

    def forget(self, segment_id: bytes) -> None:
        if (segment := self._by_id.pop(segment_id, None)) is not None:
            self.release(segment)
            self.indexes.left_table(segment.index)
