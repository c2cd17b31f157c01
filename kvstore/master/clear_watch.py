"""How far a clear has come: who may still answer for a namespace's ended epoch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kvstore.common.identity import identity_hash
from kvstore.master.directory import Directory
from kvstore.master.metadata.attendance import Attendance
from kvstore.master.state import layout
from kvstore.master.state.segment_table import Segment
from kvstore.v1 import admin_pb2 as pb
from kvstore_client.address import Address


class ClearWatch:
    """`own_address`: of this master; `attendance`: of the masters that share its store, None where it is alone."""

    def __init__(self, own_address: Callable[[], str], attendance: Attendance | None) -> None:
        self._own_address = own_address
        self._attendance = attendance

    async def progress(self, directory: Directory, ns: bytes) -> Any | None:
        """A pb.ClearProgress; None when `ns` never was the id of a namespace. Raises StoreError."""
        namespace = directory.state.namespaces.successor(ns)
        if namespace is None:
            return None
        masters = await self._masters(layout.namespace_key(identity_hash(namespace.identity)))
        # Last: what they have confirmed while the store was asked counts.
        segments = directory.state.barriers.waited_for(ns)
        return pb.ClearProgress(masters=masters, segments=[_unconfirmed(segment) for segment in segments])

    async def _masters(self, key: bytes) -> list[Any]:
        if self._attendance is None:
            return []
        cleared_at = await self._attendance.changed_at(key)
        confirmed = await self._attendance.confirmed()
        confirmed.pop(self._own_address(), None)
        return [
            pb.Unconfirmed(
                address=address, why="it has not read so far, or is cut off from the metadata store"
            )
            for address, revision in sorted(confirmed.items())
            if revision < cleared_at
        ]


def _unconfirmed(segment: Segment) -> Any:
    endpoint = segment.record.endpoint
    if segment.registered:
        why = "it is attached and has not confirmed"
    elif segment.recovering_until is not None:
        why = "it has not attached since this master leads"
    else:
        why = f"it is not attached; last heard {max(0.0, time.monotonic() - segment.heard_at):.0f} s ago"
    return pb.Unconfirmed(address=str(Address(endpoint.host, endpoint.tcp_port)), why=why)
