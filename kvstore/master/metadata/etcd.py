"""`etcd://host:port,...` - the store for several masters: an etcd cluster of its own, or a prefix of a shared one.

Each commit is one transaction. It compares the leader key's creation revision (the fence) and the *marker*, a key that every commit
rewrites. The marker makes commits exactly-once and ordered although they may be sent again: an attempt that was held up in a hung
member and arrives late finds another marker and does nothing; one whose answer was lost is recognised by its own marker.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence

from kvstore.common.errors import FencedError, StoreError
from kvstore.etcd import etcd_pb2 as pb
from kvstore.master.metadata.attendance import Attendance
from kvstore.master.metadata.etcd_attendance import EtcdAttendance
from kvstore.master.metadata.etcd_client import EtcdClient, NoSpaceError
from kvstore.master.metadata.etcd_election import Election, EtcdTenure
from kvstore.master.metadata.etcd_options import EtcdOptions, parse_uri
from kvstore.master.metadata.etcd_space import SIZES_BEHIND_S, SLICE_S, space
from kvstore.master.metadata.etcd_upkeep import EtcdUpkeep
from kvstore.master.metadata.etcd_watch import watch
from kvstore.master.metadata.replicated import (
    ReplicatedStore,
    StoreReader,
    Tenure,
    Update,
)
from kvstore.master.metadata.store import (
    INTERNAL_PREFIX,
    Delete,
    DeleteRange,
    Fence,
    KeyUpdate,
    Op,
    Put,
    Space,
    SpaceLevel,
    checked_ops,
    op_bytes,
    prefix_end,
)

MARKER_BYTES = 16
OPEN_TIMEOUT_S = 2.0
RECENT_COMMITS_MAX = 4096


class EtcdStore(ReplicatedStore):
    def __init__(self, options: EtcdOptions) -> None:
        self._options = options
        self._client = EtcdClient(options.endpoints, options.commit_timeout_s)
        self._prefix = options.key_prefix
        internal = self._prefix + INTERNAL_PREFIX
        self._upkeep = EtcdUpkeep(self._client, options, internal)
        self._election = Election(self._client, internal, options.ttl_s, self._upkeep.right_key)
        self._marker_key = internal + b"marker"
        self._attendance = EtcdAttendance(self._client, self._prefix, internal)
        self._tenure: EtcdTenure | None = None
        self._marker = b""  # that of the newest commit, once one of this tenure has been read or made
        self._committing = asyncio.Lock()
        self._open = False
        self._level = SpaceLevel.NORMAL
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT_COMMITS_MAX)  # (when, bytes)
        self._room_at = float("-inf")  # when upkeep was last given some

    @property
    def attendance(self) -> Attendance:
        return self._attendance

    async def open(self) -> None:
        try:
            await self._client.status(OPEN_TIMEOUT_S)
            await self._client.get(self._marker_key)
        except StoreError as error:
            raise StoreError(
                f"no etcd answers at {', '.join(self._options.endpoints)}: {error}. Check the endpoints (etcd's client "
                "port, in plain text and without users), and that a majority of the members runs"
            ) from error
        self._open = True

    async def close(self) -> None:
        if self._open:
            self._open = False
            await self._election.resign()
        await self._client.close()

    # ---- writing -------------------------------------------------------------------------------------------

    async def acquire(self) -> Fence:
        return (await self.campaign()).fence

    def announce(self, address: str) -> None:
        self._election.address = address

    async def campaign(self) -> Tenure:
        self._check_open()
        self._tenure = None
        try:
            tenure = await self._election.campaign()
        except NoSpaceError:
            await self._upkeep.end_alarm_without_leader()
            raise
        # After the election, so that no earlier leader can change it any more.
        kv, _ = await self._client.get(self._marker_key)
        self._marker = kv.value if kv is not None else b""
        self._tenure = tenure
        return tenure

    async def resign(self) -> None:
        self._tenure = None
        await self._election.resign()

    async def commit(self, ops: Sequence[Op], fence: Fence) -> None:
        self._check_open()
        checked = checked_ops(ops)
        async with self._committing:
            tenure = self._tenure
            if tenure is None or fence.term != tenure.fence.term:
                raise FencedError(f"term {fence.term} has ended")
            if tenure.ended.is_set():
                raise FencedError(f"term {fence.term} has ended: {tenure.why}")
            await self._commit(checked, tenure)
            self._recent.append((time.monotonic(), sum(map(op_bytes, checked))))

    async def _commit(self, ops: Sequence[Op], tenure: EtcdTenure) -> None:
        mine = secrets.token_bytes(MARKER_BYTES)
        success = [self._request(op) for op in ops]
        success.append(pb.RequestOp(request_put=pb.PutRequest(key=self._marker_key, value=mine)))
        failure = [
            pb.RequestOp(request_range=pb.RangeRequest(key=self._marker_key)),
            pb.RequestOp(request_range=pb.RangeRequest(key=self._election.leader_key)),
        ]
        while True:
            compare = [self._election.fence(tenure), self._marker_compare()]
            reply = await self._client.txn(pb.TxnRequest(compare=compare, success=success, failure=failure))
            if reply.succeeded:
                self._marker = mine
                return
            marker, leader = (response.response_range.kvs for response in reply.responses)
            if marker and marker[0].value == mine:
                # An earlier attempt was carried out, and its answer was lost.
                self._marker = mine
                return
            if not leader or leader[0].create_revision != tenure.revision:
                tenure.end("another master has taken over")
                raise FencedError(f"term {tenure.fence.term} has ended: another master has taken over")
            # A commit of ours that was given up has been carried out after all: go on from there.
            self._marker = marker[0].value if marker else b""

    def _marker_compare(self) -> pb.Compare:
        if not self._marker:
            return pb.Compare(target=pb.Compare.CREATE, key=self._marker_key, create_revision=0)
        return pb.Compare(target=pb.Compare.VALUE, key=self._marker_key, value=self._marker)

    def _request(self, op: Op) -> pb.RequestOp:
        if isinstance(op, Put):
            return pb.RequestOp(request_put=pb.PutRequest(key=self._prefix + op.key, value=op.value))
        if isinstance(op, Delete):
            return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=self._prefix + op.key))
        assert isinstance(op, DeleteRange)
        return pb.RequestOp(
            request_delete_range=pb.DeleteRangeRequest(
                key=self._prefix + op.start, range_end=self._prefix + op.end
            )
        )

    # ---- reading -------------------------------------------------------------------------------------------

    async def get(self, key: bytes) -> bytes | None:
        return await self._get(key, 0)

    def scan(self, prefix: bytes) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        return self._scan(prefix, 0)

    async def _get(self, key: bytes, revision: int) -> bytes | None:
        self._check_open()
        kv, _ = await self._client.get(self._prefix + key, revision)
        return None if kv is None else kv.value

    async def _scan(self, prefix: bytes, revision: int) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        self._check_open()
        if not prefix:
            raise StoreError("a scan needs a prefix")
        start = self._prefix + prefix
        async for page in self._client.pages(start, prefix_end(start), revision):
            yield [(kv.key[len(self._prefix) :], kv.value) for kv in page]

    def at(self, revision: int) -> StoreReader:
        return _AtRevision(self, revision)

    async def leader_address(self) -> str | None:
        return await self._election.leader_address()

    # ---- following -----------------------------------------------------------------------------------------

    async def revisions(self) -> tuple[int, int]:
        self._check_open()
        kv, revision = await self._client.get(self._marker_key)
        return revision, kv.mod_revision if kv is not None else 0  # every commit writes the marker

    async def follow(self, revision: int) -> AsyncIterator[Update]:
        self._check_open()
        internal = self._prefix + INTERNAL_PREFIX
        async for changes in watch(self._client, self._prefix, prefix_end(self._prefix), revision + 1):
            yield Update(
                changes.revision,
                tuple(
                    KeyUpdate(event.key[len(self._prefix) :], event.value)
                    for event in changes.events
                    if not event.key.startswith(internal)
                ),
            )

    # ---- space ---------------------------------------------------------------------------------------------

    async def size_bytes(self) -> int:
        self._check_open()
        return int((await self._client.status()).db_size)

    async def space(self, pending_bytes: int = 0) -> Space:
        self._check_open()
        now = time.monotonic()
        while self._recent and now - self._recent[0][0] > SIZES_BEHIND_S:
            self._recent.popleft()
        pending_bytes += sum(size for _, size in self._recent)
        slice_due = now - self._room_at >= SLICE_S
        measured = space(await self._upkeep.usage(), self._level, pending_bytes, slice_due=slice_due)
        if measured.upkeep_room_bytes:
            self._room_at = now
        self._level = measured.level
        return measured

    async def keep_up(self) -> None:
        self._check_open()
        await self._upkeep.keep_up(self._level)

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError("the metadata store is not open")


class _AtRevision:
    def __init__(self, store: EtcdStore, revision: int) -> None:
        self._store = store
        self._revision = revision

    async def get(self, key: bytes) -> bytes | None:
        return await self._store._get(key, self._revision)

    def scan(self, prefix: bytes) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        return self._store._scan(prefix, self._revision)


def open_uri(uri: str) -> EtcdStore:
    return EtcdStore(parse_uri(uri))
