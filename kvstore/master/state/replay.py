"""What the stored records add up to: registry, namespaces, and every segment's log in an index.

Fed with all records of one moment, then, by a follower, with each change after it (`follow`). A corrupt record costs what it
holds and nothing else: it is reported, and its segment is marked damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kvstore.common.errors import CorruptRecordError, StoreError
from kvstore.common.identity import identity_hash, namespace_id
from kvstore.master.metadata.store import Delete, KeyUpdate, Op
from kvstore.master.state import layout
from kvstore.master.state.directory_state import RecoveredSegment
from kvstore.master.state.journal_entries import apply_entries
from kvstore.master.state.layout import ClusterRecord, LogKey, NamespaceRecord, QuotaRecord, SegmentRecord
from kvstore.master.state.log_sizes import LogSizes
from kvstore.master.state.records import Record, RecordKind, decode_journal
from kvstore_client._native import DirectoryIndex
from kvstore_client.protocol.journal import count_entries, skip_entries


@dataclass(frozen=True, slots=True)
class CorruptRecord:
    """One that was found damaged; `kind` is what it should have been."""

    kind: str
    key: bytes
    why: str


OnCorrupt = Callable[[CorruptRecord], None]


@dataclass(slots=True)
class SegmentLog:
    """What has been read of one segment's log."""

    record: SegmentRecord
    durable_seq: int
    next_generation: int
    chunks_seen: int = 0
    sizes: LogSizes = field(default_factory=LogSizes)
    damaged: bool = False

    @property
    def index(self) -> int:
        return self.record.index

    @staticmethod
    def unread(record: SegmentRecord) -> SegmentLog:
        return SegmentLog(record, record.snapshot.seq, record.snapshot.generation + 1)


class Replay:
    def __init__(self, on_corrupt: OnCorrupt) -> None:
        """`on_corrupt` hears of each damaged record."""
        self._on_corrupt = on_corrupt
        self.index = DirectoryIndex()
        self.cluster: ClusterRecord | None = None
        self.logs: dict[bytes, SegmentLog] = {}
        self.namespaces: dict[bytes, NamespaceRecord] = {}  # by identity
        self.current: dict[bytes, NamespaceRecord] = {}  # by id
        self.quotas: dict[bytes, QuotaRecord] = {}  # by key
        self.lost_namespaces: dict[bytes, None] = {}  # keys of records that can't be read
        # Nobody knows of what: any log may lack something, any namespace may have had a later epoch.
        self.commits_lost = False
        self.leftovers: list[Op] = []  # removes what no record stands for any more
        # Segments whose log has been replaced and is to be read again. Until that is done their pages are those of before.
        # The one that has waited longest comes first.
        self.to_reload: dict[bytes, None] = {}

    # ---- all records of one moment: cluster, namespaces and segments before logs -----------------------------

    def load_cluster(self, value: bytes | None) -> None:
        """Raises StoreError: without it nothing else means anything. NewerFormatError, as all that loads and follows does."""
        if value is None:
            # Who removed it has removed the epochs of namespaces, or may: under the old id segments would take ids that were
            # cleared for current ones. The next leader founds another cluster.
            self.cluster = None
            return
        try:
            self.cluster = ClusterRecord.decode(value)
        except CorruptRecordError as error:
            raise StoreError(
                f"the cluster record is corrupt ({error}): restore the metadata store, "
                "or remove it to start an empty cluster"
            ) from error

    def load_namespace(self, key: bytes, value: bytes) -> None:
        try:
            record = NamespaceRecord.decode(value)
        except CorruptRecordError as error:
            self._corrupt("namespace", key, error)
            self.lost_namespaces[key] = None
            self._forget_namespace(key)  # what it was before is over
            return
        self.lost_namespaces.pop(key, None)
        self.add_namespace(record)

    def load_quota(self, key: bytes, value: bytes) -> None:
        """One that is corrupt is none: nobody is kept to it until it is set again."""
        self.quotas.pop(key, None)
        try:
            self.quotas[key] = QuotaRecord.decode(value)
        except CorruptRecordError as error:
            self._corrupt("quota", key, error)

    def add_namespace(self, record: NamespaceRecord) -> None:
        if (old := self.namespaces.get(record.identity)) is not None:
            self.current.pop(namespace_id(old.identity, old.epoch), None)
        self.namespaces[record.identity] = record
        self.current[namespace_id(record.identity, record.epoch)] = record

    def _forget_namespace(self, key: bytes) -> None:
        for record in [
            r for r in self.namespaces.values() if layout.namespace_key(identity_hash(r.identity)) == key
        ]:
            del self.namespaces[record.identity]
            self.current.pop(namespace_id(record.identity, record.epoch), None)

    def load_segment(self, key: bytes, value: bytes) -> None:
        segment_id = key[len(layout.SEGMENTS_PREFIX) :]
        record = self._segment_record(key, value)
        if record is None:
            # Its log says nothing without it. The segment starts anew when it attaches, with an inventory.
            self.leftovers += [layout.whole_log(segment_id), Delete(key)]
            return
        self.logs[segment_id] = SegmentLog.unread(record)

    def load_log(self, page: list[tuple[bytes, bytes]]) -> None:
        for key, value in page:
            at = self._log_key(key)
            if at is None:
                self.leftovers.append(Delete(key))
                continue
            log = self.logs.get(at.segment_id)
            if log is None:
                orphan = layout.whole_log(at.segment_id)
                if orphan not in self.leftovers:
                    self.leftovers.append(orphan)
                continue
            if at.first_seq is None and not self._is_current(log, at):
                # A snapshot that was never finished, or was replaced.
                self.leftovers.append(Delete(key))
            self._load_record(log, at, key, value)

    # ---- changes since then ----------------------------------------------------------------------------------

    def follow(self, change: KeyUpdate) -> None:
        """Applies one change. Segments whose log has been replaced by a snapshot are in `to_reload` then."""
        key, value = change.key, change.value
        if key.startswith(layout.LOGS_PREFIX):
            if value is not None:  # what is deleted has been replaced, or its segment goes with it
                self._follow_log(key, value)
        elif key.startswith(layout.SEGMENTS_PREFIX):
            self._follow_segment(key, value)
        elif key.startswith(layout.NAMESPACES_PREFIX):
            if value is not None:
                self.load_namespace(key, value)
            else:
                self.lost_namespaces.pop(key, None)
                self._forget_namespace(key)
        elif key.startswith(layout.QUOTAS_PREFIX):
            if value is not None:
                self.load_quota(key, value)
            else:
                self.quotas.pop(key, None)
        elif key == layout.CLUSTER_KEY:
            self.load_cluster(value)

    def _follow_log(self, key: bytes, value: bytes) -> None:
        at = self._log_key(key)
        log = None if at is None else self.logs.get(at.segment_id)
        if at is not None and log is not None:
            self._load_record(log, at, key, value, follow=True)

    def _follow_segment(self, key: bytes, value: bytes | None) -> None:
        segment_id = key[len(layout.SEGMENTS_PREFIX) :]
        log = self.logs.get(segment_id)
        record = None if value is None else self._segment_record(key, value)
        if record is None:
            self.to_reload.pop(segment_id, None)
            if log is not None:
                del self.logs[segment_id]
                self.index.drop_segment(log.index)
            return
        if log is None or log.record.endpoint.pool_id != record.endpoint.pool_id or log.index != record.index:
            if log is not None:
                self.index.drop_segment(log.index)
            self.to_reload.pop(segment_id, None)
            self.logs[segment_id] = SegmentLog.unread(record)
            if record.snapshot.generation:
                self.to_reload[segment_id] = None
            return
        if log.record.snapshot.generation != record.snapshot.generation:
            self.to_reload[segment_id] = None
        log.record = record

    # Reading a log again, as it is at one moment not before the last change that was followed. It may be begun anew; changes up
    # to that moment, which are followed later, are recognised by their numbers.

    def begin_reload(self, segment_id: bytes, record: bytes | None) -> SegmentLog | None:
        """`record`: that of the segment at that moment. None when it is of another log than the last that was followed: then there
        are changes to follow first."""
        log = self.logs[segment_id]
        try:
            if record is None or SegmentRecord.decode(segment_id, record).snapshot != log.record.snapshot:
                return None
        except CorruptRecordError:
            return None
        fresh = SegmentLog.unread(log.record)
        fresh.next_generation = max(fresh.next_generation, log.next_generation)
        self.index.begin_inventory(log.index)
        return fresh

    def reload_log(self, fresh: SegmentLog, page: list[tuple[bytes, bytes]]) -> None:
        for key, value in page:
            at = self._log_key(key)
            if at is not None:
                self._load_record(fresh, at, key, value)

    def end_reload(self, segment_id: bytes, fresh: SegmentLog) -> None:
        self.index.end_inventory(fresh.index)
        self.logs[segment_id] = fresh
        self.to_reload.pop(segment_id, None)

    # ---- result ----------------------------------------------------------------------------------------------

    def segments(self) -> Iterator[RecoveredSegment]:
        for segment_id, log in self.logs.items():
            yield RecoveredSegment(
                log.index,
                segment_id,
                log.record,
                log.durable_seq,
                log.sizes.total,
                log.next_generation,
                self.commits_lost or log.damaged or log.chunks_seen != log.record.snapshot.chunks,
            )

    # ---- common ----------------------------------------------------------------------------------------------

    def _segment_record(self, key: bytes, value: bytes) -> SegmentRecord | None:
        segment_id = key[len(layout.SEGMENTS_PREFIX) :]
        try:
            record = SegmentRecord.decode(segment_id, value)
            for other_id, other in self.logs.items():
                if other.index == record.index and other_id != segment_id:
                    raise CorruptRecordError(f"index {record.index} is that of {other_id.hex()}")
        except CorruptRecordError as error:
            self._corrupt("segment", key, error)
            return None
        return record

    def _log_key(self, key: bytes) -> LogKey | None:
        try:
            return layout.parse_log_key(key)
        except CorruptRecordError as error:
            self._corrupt("log key", key, error)
            return None

    def _load_record(
        self, log: SegmentLog, at: LogKey, key: bytes, value: bytes, *, follow: bool = False
    ) -> None:
        """`follow`: it has just been written, and all that was written before it has been read."""
        try:
            if at.first_seq is None:
                self._load_chunk(log, at, key, value, follow=follow)
            else:
                self._load_journal(log, at.first_seq, key, value)
        except (CorruptRecordError, ValueError) as error:
            log.damaged = True
            self._corrupt("snapshot" if at.first_seq is None else "journal", key, error)

    @staticmethod
    def _is_current(log: SegmentLog, at: LogKey) -> bool:
        return at.generation == log.record.snapshot.generation and at.chunk < log.record.snapshot.chunks

    def _load_chunk(self, log: SegmentLog, at: LogKey, key: bytes, value: bytes, *, follow: bool) -> None:
        log.next_generation = max(log.next_generation, at.generation + 1)
        if not self._is_current(log, at):
            return
        record = Record.decode(value, RecordKind.SNAPSHOT)
        log.sizes.chunk(at.chunk, count_entries(record.body))
        if follow:
            return  # rewritten by a compaction: it says nothing new
        log.chunks_seen += 1
        self._apply(log, key, record.body, numbered=False)

    def _load_journal(self, log: SegmentLog, first_seq: int, key: bytes, value: bytes) -> None:
        record = decode_journal(value, first_seq)
        log.sizes.journal(record.first_seq, record.last_seq, count_entries(record.body))
        if record.last_seq <= log.durable_seq:
            return  # rewritten by a compaction, or read before
        numbered = record.kind is RecordKind.JOURNAL
        skip = 0
        if record.first_seq > log.durable_seq + 1:
            # The record before it was lost: what is here still counts, the segment's inventory will bring
            # the rest.
            log.damaged = True
        elif numbered:
            skip = log.durable_seq + 1 - record.first_seq
        self._apply(log, key, skip_entries(record.body, skip), numbered=numbered)
        log.durable_seq = record.last_seq

    def _apply(self, log: SegmentLog, key: bytes, groups: bytes, *, numbered: bool) -> None:
        refused = apply_entries(self.index, log.index, groups, numbered=numbered)
        if refused:
            self._on_corrupt(CorruptRecord("entry", key, f"{refused} entries that no directory takes"))

    def _corrupt(self, kind: str, key: bytes, error: Exception) -> None:
        self._on_corrupt(CorruptRecord(kind, key, str(error)))
