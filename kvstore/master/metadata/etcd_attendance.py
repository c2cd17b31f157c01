"""`Attendance` in etcd: a key a master, on a lease of its own."""

from __future__ import annotations

import json

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
                entries[address] = _confirmed(kv.value)
        return entries

    async def changed_at(self, key: bytes) -> int:
        kv, _ = await self._client.get(self._key_prefix + key)
        return 0 if kv is None else int(kv.mod_revision)

    async def _put(self, address: str, lease_id: int, confirmed: int) -> int:
        """The revision of the entry that says so. It replaces only what was seen: an attempt that was given up and is carried out
        late, after a later one, must not take that back."""
        key = self._entries + address.encode()
        value = json.dumps({"confirmed": confirmed}).encode()
        put = pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease_id))
        while True:
            kv, _ = await self._client.get(key)
            if kv is not None and kv.lease == lease_id and _confirmed(kv.value) >= confirmed:
                return int(kv.mod_revision)
            seen = pb.Compare(
                target=pb.Compare.MOD, key=key, mod_revision=0 if kv is None else kv.mod_revision
            )
            reply = await self._client.txn(pb.TxnRequest(compare=[seen], success=[put]))
            if reply.succeeded:
                return int(reply.header.revision)


def _confirmed(value: bytes) -> int:
    try:
        return int(json.loads(value)["confirmed"])
    except (ValueError, KeyError, TypeError):
        return 0
