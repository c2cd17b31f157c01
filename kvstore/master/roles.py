"""Who answers requests: the leader's directory, or a standby's view that only reads. The ports ask `Roles.backend` each time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import NoReturn, Protocol

from kvstore.common.errors import RefusedError
from kvstore.common.identity import namespace_id
from kvstore.master.directory import Directory, NamespaceView
from kvstore.master.ha.fresh_reads import FreshReads
from kvstore.master.metadata.replicated import Tenure
from kvstore.master.state.directory_state import DirectoryState
from kvstore.master.state.layout import QuotaRecord, quota_key
from kvstore.master.state.replay import Replay
from kvstore_client._native import DirectoryIndex
from kvstore_client.protocol import MapRecord, NamespaceReply, SegmentState, Status

CUT_OFF_TEXT = (
    "this standby has been cut off from the metadata store for too long: it does not know what has been cleared meanwhile. "
    "Ask another master"
)


class Backend(Protocol):
    @property
    def cluster_id(self) -> bytes: ...
    @property
    def map_epoch(self) -> int: ...
    @property
    def index(self) -> DirectoryIndex: ...
    def segment_map(self) -> list[MapRecord]: ...
    def used_bytes(self) -> dict[int, int]:
        """Of each segment, by its index, as last reported."""

    def is_current(self, ns: bytes) -> bool: ...
    @property
    def namespace_count(self) -> int: ...
    def namespaces(self) -> Iterable[NamespaceView]: ...
    def quotas(self) -> Iterable[QuotaRecord]: ...
    def used(self, ns: bytes) -> None:
        """Somebody asks for what the namespace holds."""

    def place(self, body: bytes, preferred: int, avoided: Sequence[int] = (), replicas: int = 1) -> bytes:
        """The fields of a PLACE reply. Raises RefusedError, or WireError of the native module.

        `avoided`: indexes of the segments whose data ports do not serve the one who asks. `replicas`: copies of each object.
        """

    async def open_namespace(self, identity: bytes, name: str) -> NamespaceReply: ...
    async def bump_namespace(self, ns: bytes) -> NamespaceReply: ...
    async def map_changed(self) -> None:
        """Until the segment map may have a newer epoch."""


class Roles:
    """The backend of now. `directory` is there while this master leads."""

    def __init__(self) -> None:
        self._backend: Backend | None = None
        self.directory: Directory | None = None
        self._tenure: Tenure | None = None
        self.leader_address = ""  # control address of the leader, as far as it is known
        self.fresh_reads: FreshReads | None = None  # of a standby
        self.lag_revisions: int | None = None  # commits that a standby's directory is behind
        # Until when a standby may answer (time.monotonic()): later it may not know what has been cleared. None: for ever.
        self.reads_until: float | None = None

    @property
    def backend(self) -> Backend:
        if self._backend is None:
            raise RefusedError(Status.UNAVAILABLE, "this master is still loading the directory")
        if self.is_cut_off:
            raise RefusedError(Status.UNAVAILABLE, CUT_OFF_TEXT)
        return self._backend

    @property
    def is_cut_off(self) -> bool:
        """A standby that has not heard from the store for so long that it may answer with what was cleared."""
        return (
            self.directory is None and self.reads_until is not None and time.monotonic() >= self.reads_until
        )

    @property
    def map_epoch(self) -> int:
        """0 while there is no map."""
        return self._backend.map_epoch if self._backend is not None else 0

    def lead(self, directory: Directory, tenure: Tenure | None = None) -> None:
        """`tenure`: None where there is no other master."""
        self._backend = self.directory = directory
        self._tenure = tenure
        self.lag_revisions = None

    @property
    def leads_for_certain(self) -> bool:
        """Whether no other master can have changed anything meanwhile."""
        return self.directory is not None and (self._tenure is None or self._tenure.is_certain)

    def stand_by(self, standby: Standby) -> None:
        self._backend, self.directory = standby, None

    def refuse_change(self) -> NoReturn:
        raise RefusedError(Status.NOT_LEADER, self.not_leader_text())

    def not_leader_text(self) -> str:
        leader = f"the leader is {self.leader_address}" if self.leader_address else "there is no leader now"
        return f"this master is a standby and changes nothing: {leader}"


class Standby:
    """Reads of a follower's replay. The segment map is the leader's, as it last told (`mirror`); until it has, that of the records."""

    def __init__(self, roles: Roles, replay: Replay, revision: int) -> None:
        self._roles = roles
        self._replay = replay
        self._records_epoch = revision
        self._mirrored: tuple[int, list[MapRecord]] | None = None
        self._changed = asyncio.Event()

    @staticmethod
    def resigned(roles: Roles, state: DirectoryState) -> Standby:
        """What a leader that is one no more can still answer, until it has read the records anew."""
        replay = Replay(lambda kind: None)
        replay.index = state.index
        replay.cluster = state.cluster
        for record in state.namespaces.records():
            replay.add_namespace(record)
        for quota in state.quotas.records():
            replay.quotas[quota_key(quota.kind, quota.subject)] = quota
        standby = Standby(roles, replay, 0)
        standby._mirrored = (state.map_epoch, state.segment_map())
        return standby

    def replace(self, replay: Replay, revision: int) -> None:
        """Another replay, of newer records."""
        self._replay = replay
        self._serve_mirrored()
        self.records_changed(revision)

    def mirror(self, epoch: int, segments: list[MapRecord]) -> None:
        """The leader's map."""
        self._mirrored = (epoch, segments)
        self._serve_mirrored()
        self._wake()

    def records_changed(self, revision: int) -> None:
        """Segments came, went or moved, in the records."""
        self._records_epoch = revision
        self._wake()

    def _serve_mirrored(self) -> None:
        for segment in self._mirrored[1] if self._mirrored is not None else ():
            serving = segment.state in (SegmentState.LIVE, SegmentState.DRAINING)
            self._replay.index.set_serving(segment.index, serving)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # ---- Backend -------------------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> bytes:
        if self._replay.cluster is None:
            raise RefusedError(Status.UNAVAILABLE, "the cluster is being founded: try again")
        return self._replay.cluster.cluster_id

    @property
    def map_epoch(self) -> int:
        return self._mirrored[0] if self._mirrored is not None else self._records_epoch

    @property
    def index(self) -> DirectoryIndex:
        return self._replay.index

    def segment_map(self) -> list[MapRecord]:
        if self._mirrored is not None:
            return self._mirrored[1]
        records = [log.record for log in self._replay.logs.values()]
        return [
            record.endpoint.map_record(
                record.index, SegmentState.DRAINING if record.draining else SegmentState.LIVE, used_bytes=0
            )
            for record in records
        ]

    def used_bytes(self) -> dict[int, int]:
        return {record.index: record.used_bytes for record in self.segment_map()}

    def is_current(self, ns: bytes) -> bool:
        return ns in self._replay.current

    @property
    def namespace_count(self) -> int:
        return len(self._replay.current)

    def namespaces(self) -> Iterable[NamespaceView]:
        for ns, record in list(self._replay.current.items()):
            yield NamespaceView(ns, record.epoch, record.name, record.identity)

    def used(self, ns: bytes) -> None:
        """It is the leader that forgets those that nobody uses."""

    def quotas(self) -> Iterable[QuotaRecord]:
        return list(self._replay.quotas.values())

    def place(self, body: bytes, preferred: int, avoided: Sequence[int] = (), replicas: int = 1) -> bytes:
        self._roles.refuse_change()

    async def open_namespace(self, identity: bytes, name: str) -> NamespaceReply:
        record = self._replay.namespaces.get(identity)
        if record is None:
            self._roles.refuse_change()
        return NamespaceReply(namespace_id(identity, record.epoch), record.epoch)

    async def bump_namespace(self, ns: bytes) -> NamespaceReply:
        self._roles.refuse_change()

    async def map_changed(self) -> None:
        await self._changed.wait()
