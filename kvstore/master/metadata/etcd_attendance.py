"""`Attendance` in etcd: a key a master, on a lease of its own."""

from __future__ import annotations

import json

from kvstore.common.errors import StoreError
from kvstore.etcd import etcd_pb2 as pb
from kvstore.master.metadata.attendance import NoEntriesError, Stay
from kvstore.master.metadata.etcd_client import EtcdClient, NoSpaceError
from kvstore.master.metadata.store import prefix_end

LEAVE_TIMEOUT_S = 2.0


class EtcdAttendance:
    def __init__(self, client: EtcdClient, key_prefix: bytes, internal: bytes) -> None:
        self._client = client
        self._key_prefix = key_prefix
        self._entries = internal + b"masters/"

    async def enter(self, address: str, lasts_s: float) -> Stay:
        try:
            lease_id, granted_s = await self._client.lease_grant(lasts_s)
            revision = await self._put(address, lease_id, 0)
        except NoSpaceError as error:
            raise NoEntriesError(str(error)) from error
        return Stay(address, lease_id, revision, granted_s)

    async def renew(self, stay: Stay, timeout_s: float) -> float:
        return await self._client.lease_keep_alive(stay.lease_id, timeout_s)

    async def confirm(self, stay: Stay, revision: int) -> None:
        await self._put(stay.address, stay.lease_id, revision)

    async def leave(self, stay: Stay) -> None:
        await self._client.lease_revoke(stay.lease_id, LEAVE_TIMEOUT_S)

    async def confirmed(self) -> dict[str, int]:
        entries: dict[str, int] = {}
        async for page in self._client.pages(self._entries, prefix_end(self._entries)):
            for kv in page:
                address = kv.key[len(self._entries) :].decode(errors="replace")
                try:
                    entries[address] = int(json.loads(kv.value)["confirmed"])
                except (ValueError, KeyError, TypeError):
                    entries[address] = 0
        return entries

    async def changed_at(self, key: bytes) -> int:
        kv, _ = await self._client.get(self._key_prefix + key)
        return 0 if kv is None else int(kv.mod_revision)

    async def _put(self, address: str, lease_id: int, confirmed: int) -> int:
        value = json.dumps({"confirmed": confirmed}).encode()
        put = pb.PutRequest(key=self._entries + address.encode(), value=value, lease=lease_id)
        reply = await self._client.txn(pb.TxnRequest(success=[pb.RequestOp(request_put=put)]))
        if not reply.succeeded:
            raise StoreError("etcd has not taken this master's entry")
        return int(reply.header.revision)
