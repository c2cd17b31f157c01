"""Leader election in etcd: the leader key hangs on a lease, and every term has a number.

A candidate creates the leader key if there is none, in one transaction with the next term number. The key's creation revision is
the fence: each write of the leader is a transaction that compares it, so that one who lost the key without noticing writes nothing.
The leader's own clock only ever ends its tenure early: it counts a lease from the moment it asked for the renewal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import time

from kvstore.common.errors import StoreError
from kvstore.common.logs import log_throttled
from kvstore.etcd import etcd_pb2 as pb
from kvstore.master.metadata.etcd_client import EtcdClient
from kvstore.master.metadata.etcd_watch import watch
from kvstore.master.metadata.replicated import Tenure
from kvstore.master.metadata.store import Fence

logger = logging.getLogger(__name__)

RENEWALS_PER_TTL = 3
RESIGN_TIMEOUT_S = 2.0
_TERM = struct.Struct("<Q")


class EtcdTenure(Tenure):
    def __init__(self, fence: Fence, revision: int, lease_id: int) -> None:
        super().__init__(fence, revision)
        self.lease_id = lease_id


class Election:
    """`prefix`: keys <prefix>leader and <prefix>term are the election's own. `also_put`: a key that is there once somebody was
    elected."""

    def __init__(self, client: EtcdClient, prefix: bytes, ttl_s: float, also_put: bytes = b"") -> None:
        self._client = client
        self.leader_key = prefix + b"leader"
        self._term_key = prefix + b"term"
        self._also_put = also_put
        self._ttl_s = ttl_s
        self._renewing: asyncio.Task[None] | None = None
        self._tenure: EtcdTenure | None = None
        self.address = ""

    async def campaign(self) -> EtcdTenure:
        """Returns once elected. Raises StoreError when etcd does not answer or refuses."""
        await self.resign()
        while True:
            asked_at = time.monotonic()
            lease_id, granted_s = await self._client.lease_grant(self._ttl_s)
            tenure, seen_revision = await self._try(lease_id)
            if tenure is not None:
                self._tenure = tenure
                tenure.lasts_until = asked_at + granted_s
                self._renewing = asyncio.create_task(
                    self._renew(tenure, asked_at + granted_s, granted_s), name="election-renewal"
                )
                return tenure
            with contextlib.suppress(StoreError):
                await self._client.lease_revoke(lease_id)
            await self._until_vacant(seen_revision)

    async def resign(self) -> None:
        """Ends the tenure, if there is one, and lets others have it at once. What can't be revoked runs out by itself."""
        tenure, self._tenure = self._tenure, None
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        if tenure is None:
            return
        tenure.end("resigned")
        try:
            await self._client.lease_revoke(tenure.lease_id, RESIGN_TIMEOUT_S)
        except StoreError as error:
            log_throttled(logger, logging.WARNING, "lease_not_revoked", "", error=str(error))

    async def leader_address(self) -> str | None:
        kv, _ = await self._client.get(self.leader_key)
        return None if kv is None else kv.value.decode(errors="replace")

    def fence(self, tenure: Tenure) -> pb.Compare:
        """True in etcd as long as the tenure lasts."""
        return pb.Compare(target=pb.Compare.CREATE, key=self.leader_key, create_revision=tenure.revision)

    async def _try(self, lease_id: int) -> tuple[EtcdTenure | None, int]:
        """(the tenure if won, revision up to which the leader key is known)"""
        stored, _ = await self._client.get(self._term_key)
        term = 1 + (_TERM.unpack(stored.value)[0] if stored is not None else 0)
        vacant = pb.Compare(target=pb.Compare.CREATE, key=self.leader_key, create_revision=0)
        unchanged = pb.Compare(
            target=pb.Compare.MOD,
            key=self._term_key,
            mod_revision=stored.mod_revision if stored is not None else 0,
        )
        leader = pb.PutRequest(key=self.leader_key, value=self.address.encode(), lease=lease_id)
        puts = [leader, pb.PutRequest(key=self._term_key, value=_TERM.pack(term))]
        if self._also_put:
            puts.append(pb.PutRequest(key=self._also_put))
        reply = await self._client.txn(
            pb.TxnRequest(
                compare=[vacant, unchanged],
                success=[pb.RequestOp(request_put=put) for put in puts],
                failure=[pb.RequestOp(request_range=pb.RangeRequest(key=self.leader_key))],
            )
        )
        if reply.succeeded:
            return EtcdTenure(Fence(term), reply.header.revision, lease_id), reply.header.revision
        held = reply.responses[0].response_range.kvs
        if held and held[0].lease == lease_id:
            # An earlier attempt of this very transaction won, and its answer was lost.
            return EtcdTenure(Fence(term), held[0].create_revision, lease_id), reply.header.revision
        return None, reply.header.revision

    async def _until_vacant(self, revision: int) -> None:
        """Until the leader key seen at `revision` has gone. A failure of etcd ends it as well: asking again does no harm."""
        kv, _ = await self._client.get(self.leader_key)
        if kv is None:
            return
        changes_of_key = watch(self._client, self.leader_key, self.leader_key + b"\x00", revision + 1)
        try:
            async with contextlib.aclosing(changes_of_key):
                async for changes in changes_of_key:
                    if changes.events[-1].value is None:
                        return
        except StoreError as error:
            log_throttled(logger, logging.WARNING, "election_watch_failed", "", error=str(error))

    async def _renew(self, tenure: EtcdTenure, ends_at: float, granted_s: float) -> None:
        why = "the lease could not be renewed in time"
        try:
            while True:
                await asyncio.sleep(max(0.0, min(granted_s / RENEWALS_PER_TTL, ends_at - time.monotonic())))
                asked_at = time.monotonic()
                if asked_at >= ends_at:
                    return
                left_s = await self._client.lease_keep_alive(tenure.lease_id, ends_at - asked_at)
                if left_s <= 0:
                    why = "the lease has ended in etcd"
                    return
                ends_at = asked_at + left_s
                tenure.lasts_until = ends_at
        except StoreError as error:
            why = f"the lease could not be renewed in time: {error}"
        finally:
            tenure.end(why)
