"""How segments with the same id were told apart once, and how masters confirmed a clear."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager

from kvstore.etcd import etcd_pb2 as pb

from kvstore.common.errors import StoreError
from kvstore.master.metadata.etcd_attendance import EtcdAttendance
from kvstore.master.state.changes import Registration
from kvstore.master.state.membership import Membership
from kvstore.master.state.segment_table import Segment
from kvstore_client.protocol import SegmentState
from simulation.mistakes import replaced


def the_last_to_come_has_the_id() -> AbstractContextManager[None]:
    """Whoever attaches takes the id from whoever has it, with an index of its own each time, for as long as both live."""
    return replaced((Membership, "_is_anothers", lambda self, now, segment, said: False))


def the_first_to_come_has_the_id() -> AbstractContextManager[None]:
    """After a fail-over, or when a stream has just broken, an id is free for any that comes."""

    def is_anothers(self: Membership, now: float, segment: Segment, said: Registration) -> bool:
        if segment.record.endpoint.pool_id == said.endpoint.pool_id or segment.state is SegmentState.GONE:
            return False
        return now - segment.alive_at < self.limits.streamless_timeout_s

    return replaced((Membership, "_is_anothers", is_anothers))


def confirmations_replace_whatever_is_there() -> AbstractContextManager[None]:
    """A master's confirmation of a clear that was given up, and is carried out late, takes back a newer one."""

    async def put(self: EtcdAttendance, address: str, lease_id: int, confirmed: int) -> int:
        entry = pb.PutRequest(
            key=self._entries + address.encode(),
            value=json.dumps({"confirmed": confirmed}).encode(),
            lease=lease_id,
        )
        reply = await self._client.txn(pb.TxnRequest(success=[pb.RequestOp(request_put=entry)]))
        if not reply.succeeded:
            raise StoreError("etcd has not taken this master's entry")
        return int(reply.header.revision)

    return replaced((EtcdAttendance, "_put", put))
