"""etcd as its clients see it: one linearizable key-value store with revisions, transactions, leases, watches, compaction and a quota.

A model of the cluster as a whole, in etcd's own messages. The size of its file follows etcd: versions take space until they are
compacted, the file never shrinks but by defragmentation, and once a write would take it over the quota an alarm refuses all but reads,
deletions and compaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from kvstore.etcd import etcd_pb2 as pb

from simulation.etcd_versions import EtcdVersions, Version, size_bytes
from simulation.event_log import EventLog
from simulation.network import End
from simulation.process import Process
from simulation.virtual_time import VirtualLoop

Changes = list[tuple[bytes, bytes | None]]  # keys and what they are now; None: deleted
NOSPACE = 1
DISARM = 2  # AlarmRequest.DEACTIVATE


class EtcdError(Exception):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


@dataclass(slots=True)
class Lease:
    ttl_s: float
    expires_at: float
    keys: dict[bytes, None] = field(default_factory=dict)


class Watcher:
    def __init__(self, end: End, start: bytes, range_end: bytes) -> None:
        self.end = end
        self.start = start
        self.range_end = range_end

    def sees(self, key: bytes) -> bool:
        return self.start <= key < self.range_end if self.range_end else key == self.start


class EtcdModel:
    """Each of `on_commit` sees all that is written, as it is carried out, as (host, revision, changes); `host` asked for it, "" is
    etcd itself."""

    def __init__(self, loop: VirtualLoop, log: EventLog, quota_bytes: int) -> None:
        self.process = Process(loop, "etcd")
        self._loop = loop
        self._log = log
        self._quota_bytes = quota_bytes
        self.revision = 1
        self.compacted = 0
        self._versions = EtcdVersions()
        self._changes: list[tuple[int, bytes, Version]] = []
        self._leases: dict[int, Lease] = {}
        self._lease_ids = 0
        self._watchers: list[Watcher] = []
        self.alarm = False
        self._asking = ""  # whose request is being carried out
        self.on_commit: list[Callable[[str, int, Changes], None]] = []
        # Faults: what of the requests fails, and how long they take.
        self.fault: Callable[[str, Any], str | None] = lambda method, request: None
        self.delay_s: Callable[[], float] = lambda: 0.0
        self.late_s: Callable[[], float] = lambda: 0.0
        self._lagging: dict[str, list[Callable[[], None]]] = {}  # what the watches of a host are not told yet

    # ---- how it is reached -----------------------------------------------------------------------------------

    async def on_unary(self, host: str, method: str, request: Any) -> Any:
        """A unary call of a client at `host`. Raises EtcdError."""
        if (delay_s := self.delay_s()) > 0:
            await _sleep(self._loop, delay_s)
        fault = self.fault(method, host) if method in ("Txn", "Range") else None
        if fault == "late":
            self._loop.call_later(self.late_s(), self._carry_out_late, host, method, request)
        if fault in ("refuse", "late"):
            raise EtcdError(grpc.StatusCode.UNAVAILABLE, "etcdserver: request timed out")
        self._asking = host
        reply = getattr(self, f"_{method}")(request)
        self._asking = ""
        if fault == "forget":
            raise EtcdError(
                grpc.StatusCode.UNAVAILABLE, "etcdserver: request timed out, and it was done all the same"
            )
        return reply

    def _carry_out_late(self, host: str, method: str, request: Any) -> None:
        """A hung member goes on: what it was asked for long ago, and was asked of others since, it does now."""
        self._asking = host
        with contextlib.suppress(EtcdError):
            getattr(self, f"_{method}")(request)
        self._asking = ""

    def on_connect(self, end: End) -> None:
        """A watch, or a lease's stream: the first message says which."""
        end.on_message = lambda message: self._stream_message(end, message)
        end.on_end = lambda: self._unwatch(end)

    def _stream_message(self, end: End, message: Any) -> None:
        if isinstance(message, pb.LeaseKeepAliveRequest):
            end.send(self._keep_alive(message))
        elif message.WhichOneof("request_union") == "create_request":
            self._watch(end, message.create_request)
        else:
            end.send(pb.WatchResponse(header=self._header()))

    # ---- reading ---------------------------------------------------------------------------------------------

    def _Range(self, request: Any) -> Any:
        at = request.revision or self.revision
        if at < self.compacted:
            raise EtcdError(
                grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted"
            )
        reply = pb.RangeResponse(header=self._header())
        for key in self._versions.range(request.key, request.range_end):
            version = self._versions.at(key, at)
            if version is None or version.value is None:
                continue
            if request.limit and len(reply.kvs) == request.limit:
                reply.more = True
                break
            reply.kvs.append(_key_value(key, version))
        return reply

    def get(self, key: bytes) -> bytes | None:
        """For checks: the newest value."""
        version = self._versions.at(key, self.revision)
        return None if version is None else version.value

    # ---- writing ---------------------------------------------------------------------------------------------

    def _Txn(self, request: Any) -> Any:
        succeeded = all(self._compare(compare) for compare in request.compare)
        ops = request.success if succeeded else request.failure
        puts = [op.request_put for op in ops if op.WhichOneof("request") == "request_put"]
        if puts:
            self._check_space(sum(size_bytes(put.key, put.value) for put in puts))
        if any(put.lease and put.lease not in self._leases for put in puts):
            raise EtcdError(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")
        revision = self.revision + 1
        changes: list[tuple[bytes, Version]] = []
        reply = pb.TxnResponse(succeeded=succeeded)
        for op in ops:
            kind = op.WhichOneof("request")
            if kind == "request_put":
                changes.append((op.request_put.key, self._put(op.request_put, revision)))
                reply.responses.append(pb.ResponseOp(response_put=pb.PutResponse()))
            elif kind == "request_delete_range":
                gone = self._delete(op.request_delete_range, revision)
                changes += gone
                reply.responses.append(
                    pb.ResponseOp(response_delete_range=pb.DeleteRangeResponse(deleted=len(gone)))
                )
            else:
                reply.responses.append(pb.ResponseOp(response_range=self._Range(op.request_range)))
        self._carried_out(revision, changes)
        reply.header.CopyFrom(self._header())
        return reply

    def _compare(self, compare: Any) -> bool:
        version = self._versions.at(compare.key, self.revision)
        there = version is not None and version.value is not None
        if compare.target == pb.Compare.CREATE:
            return bool((version.create_revision if there and version else 0) == compare.create_revision)
        if compare.target == pb.Compare.MOD:
            return bool((version.mod_revision if there and version else 0) == compare.mod_revision)
        if compare.target == pb.Compare.VERSION:
            return bool((version.version if there and version else 0) == compare.version)
        return there and version is not None and version.value == compare.value

    def _put(self, put: Any, revision: int) -> Version:
        old = self._versions.at(put.key, self.revision)
        fresh = old is None or old.value is None
        version = Version(
            revision,
            revision if fresh or old is None else old.create_revision,
            1 if fresh or old is None else old.version + 1,
            put.value,
            put.lease,
        )
        self._versions.add(put.key, version)
        if old is not None and old.lease and old.lease in self._leases:
            self._leases[old.lease].keys.pop(put.key, None)
        if put.lease:
            self._leases[put.lease].keys[put.key] = None
        return version

    def _delete(self, request: Any, revision: int) -> list[tuple[bytes, Version]]:
        gone = []
        for key in list(self._versions.range(request.key, request.range_end)):
            old = self._versions.at(key, self.revision)
            if old is not None and old.value is not None:
                tombstone = Version(revision, 0, 0, None)
                self._versions.add(key, tombstone)
                gone.append((key, tombstone))
        return gone

    def _carried_out(self, revision: int, changes: list[tuple[bytes, Version]]) -> None:
        if not changes:
            return
        self.revision = revision
        self._changes += [(revision, key, version) for key, version in changes]
        told = [(key, version.value) for key, version in changes]
        for on_commit in list(self.on_commit):
            on_commit(self._asking, revision, told)
        for watcher in self._watchers:
            self._tell(watcher, revision, changes)

    # ---- space -----------------------------------------------------------------------------------------------

    def _check_space(self, more_bytes: int) -> None:
        if not self.alarm and self._versions.file_bytes + more_bytes > self._quota_bytes:
            self.alarm = True
            self._log.say(
                "etcd", f"alarm: {self._versions.file_bytes} bytes in the file, of {self._quota_bytes}"
            )
        if self.alarm:
            raise EtcdError(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")

    def _Compact(self, request: Any) -> Any:
        self.compact(request.revision)
        return pb.CompactionResponse(header=self._header())

    def compact(self, revision: int) -> None:
        if not self.compacted < revision <= self.revision:
            raise EtcdError(
                grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted"
            )
        self.compacted = revision
        self._versions.compact(revision)
        self._changes = [change for change in self._changes if change[0] >= revision]

    def _Defragment(self, request: Any) -> Any:
        self._versions.defragment()
        return pb.DefragmentResponse(header=self._header())

    def _Status(self, request: Any) -> Any:
        return pb.StatusResponse(
            header=self._header(),
            version="3.5",
            db_size=self._versions.file_bytes,
            leader=1,
            db_size_in_use=self._versions.in_use_bytes,
        )

    def _Alarm(self, request: Any) -> Any:
        if request.action == DISARM:
            self.alarm = False
        alarms = [pb.AlarmMember(member_id=1, alarm=NOSPACE)] if self.alarm else []
        return pb.AlarmResponse(header=self._header(), alarms=alarms)

    def _MemberList(self, request: Any) -> Any:
        return pb.MemberListResponse(header=self._header(), members=[pb.Member(id=1)])

    # ---- leases ----------------------------------------------------------------------------------------------

    def _LeaseGrant(self, request: Any) -> Any:
        if self.alarm:
            raise EtcdError(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")
        self._lease_ids += 1
        lease_id = self._lease_ids
        self._leases[lease_id] = Lease(request.TTL, self._loop.time() + request.TTL)
        self._loop.call_later(request.TTL, self._expire, lease_id)
        return pb.LeaseGrantResponse(header=self._header(), ID=lease_id, TTL=request.TTL)

    def _keep_alive(self, request: Any) -> Any:
        lease = self._leases.get(request.ID)
        if lease is not None:
            lease.expires_at = self._loop.time() + lease.ttl_s
        ttl = int(lease.ttl_s) if lease is not None else 0
        return pb.LeaseKeepAliveResponse(header=self._header(), ID=request.ID, TTL=ttl)

    def _LeaseRevoke(self, request: Any) -> Any:
        if request.ID not in self._leases:
            raise EtcdError(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")
        self.revoke(request.ID)
        return pb.LeaseRevokeResponse(header=self._header())

    def revoke(self, lease_id: int) -> None:
        lease = self._leases.pop(lease_id)
        revision = self.revision + 1
        gone = []
        for key in lease.keys:
            tombstone = Version(revision, 0, 0, None)
            self._versions.add(key, tombstone)
            gone.append((key, tombstone))
        self._log.say("etcd", f"lease {lease_id} ended")
        self._carried_out(revision, gone)

    def lease_of(self, key: bytes) -> int:
        version = self._versions.at(key, self.revision)
        return 0 if version is None or version.value is None else version.lease

    def _expire(self, lease_id: int) -> None:
        lease = self._leases.get(lease_id)
        if lease is None:
            return
        left_s = lease.expires_at - self._loop.time()
        if left_s > 1e-6:
            self._loop.call_later(left_s, self._expire, lease_id)
        else:
            self.revoke(lease_id)

    # ---- watches ---------------------------------------------------------------------------------------------

    def _watch(self, end: End, request: Any) -> None:
        watcher = Watcher(end, request.key, request.range_end)
        end.send(pb.WatchResponse(header=self._header(), created=True))
        if request.start_revision and request.start_revision <= self.compacted:
            end.send(pb.WatchResponse(header=self._header(), canceled=True, compact_revision=self.compacted))
            return
        self._watchers.append(watcher)
        by_revision: dict[int, list[tuple[bytes, Version]]] = {}
        for revision, key, version in self._changes:
            if revision >= (request.start_revision or self.revision + 1):
                by_revision.setdefault(revision, []).append((key, version))
        for revision, changes in by_revision.items():
            self._tell(watcher, revision, changes)

    def _tell(self, watcher: Watcher, revision: int, changes: list[tuple[bytes, Version]]) -> None:
        events = [
            pb.Event(
                type=pb.Event.DELETE if version.value is None else pb.Event.PUT, kv=_key_value(key, version)
            )
            for key, version in changes
            if watcher.sees(key)
        ]
        if not events:
            return
        response = pb.WatchResponse(header=self._header(), events=events)
        lagging = self._lagging.get(watcher.end.peer_host)
        if lagging is not None and not watcher.range_end.endswith(b"\x00"):
            lagging.append(lambda: watcher.end.send(response))
        else:
            watcher.end.send(response)

    def hold_watches(self, host: str) -> None:
        """From now on what `host` watches goes on without its hearing of it; the election's key it sees."""
        self._lagging.setdefault(host, [])

    def release_watches(self, host: str) -> None:
        for tell in self._lagging.pop(host, ()):
            tell()

    def _unwatch(self, end: End) -> None:
        self._watchers = [watcher for watcher in self._watchers if watcher.end is not end]

    def end_watches_of(self, host: str) -> None:
        """As if the member that `host` speaks to had gone."""
        for watcher in list(self._watchers):
            if watcher.end.peer_host == host:
                watcher.end.close("etcd: the member is going")

    def _header(self) -> Any:
        return pb.ResponseHeader(revision=self.revision, member_id=1)


def _key_value(key: bytes, version: Version) -> Any:
    return pb.KeyValue(
        key=key,
        create_revision=version.create_revision,
        mod_revision=version.mod_revision,
        version=version.version,
        value=version.value or b"",
        lease=version.lease,
    )


async def _sleep(loop: VirtualLoop, seconds: float) -> None:
    future = loop.create_future()
    loop.call_later(seconds, lambda: future.done() or future.set_result(None))
    await future
