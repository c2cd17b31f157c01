"""What goes down one Attach stream: the session of one segment, as the control service sees it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from kvstore.master.directory import Directory
from kvstore.v1 import control_pb2 as pb
from kvstore_client.protocol import VERSION_MAX, Status

OUTBOX_MAX = 1024
# Of namespaces cleared lately, so many are named to a segment that attaches.
CLEARED_TOLD_MAX = 4096


class AttachStream:
    """A segment that does not read what is queued for it is cut off. Subclasses carry the journal (`SegmentSession` of
    kvstore.master.directory has what else they do)."""

    def __init__(self, directory: Directory, heartbeat_interval_ms: int) -> None:
        self.directory = directory
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._outbox: deque[Any] = deque()
        self._accepted = False
        self._limits: Any | None = None  # the newest, where it was not told yet
        self._wake = asyncio.Event()
        self.closed: tuple[Status, str] | None = None

    def accept(self, segment_index: int, durable_seq: int, need_inventory: bool) -> None:
        registered = pb.Registered(
            protocol_version=VERSION_MAX,
            segment_index=segment_index,
            durable_seq=durable_seq,
            need_inventory=need_inventory,
            heartbeat_interval_ms=self._heartbeat_interval_ms,
            cluster_id=self.directory.cluster_id,
            current_namespaces=self.directory.state.namespaces.current_ids(),
            cleared_namespaces=self.directory.state.namespaces.cleared_ids(CLEARED_TOLD_MAX),
            barrier=self.directory.state.barriers.newest,
            quotas=self.directory.quota_limits(segment_index),
            **self.more_of_registered(),
        )
        self.queue(pb.MasterMessage(registered=registered))
        self._accepted = True

    def more_of_registered(self) -> dict[str, Any]:
        """What else the answer to the registration says."""
        return {}

    def retire_namespaces(self, namespaces: tuple[bytes, ...], barrier: int) -> None:
        if not self._accepted:
            return  # the registration's answer will carry the current ones
        retired = pb.RetireNamespaces(namespaces=namespaces, barrier=barrier)
        self.queue(pb.MasterMessage(retire_namespaces=retired))

    def limit_quotas(self, limits: Any) -> None:
        """What the segment has to keep to from now on, in place of what it was told before (pb.LimitQuotas)."""
        if not self._accepted:
            return  # the registration's answer will have them
        self._limits = limits
        self._wake.set()

    def close(self, status: Status, reason: str) -> None:
        if self.closed is None:
            self.closed = (status, reason)
        self._wake.set()

    def queue(self, message: Any) -> None:
        if len(self._outbox) >= OUTBOX_MAX:
            self.close(Status.UNAVAILABLE, f"{OUTBOX_MAX} messages wait unread: attach again")
            return
        self._outbox.append(message)
        self._wake.set()

    def newest(self) -> Any | None:
        """What is made when it can be sent, and not queued before."""
        return None

    async def pump(self, context: Any) -> None:
        """Writes until the session is closed; what was queued before goes out first."""
        while True:
            while self._outbox:
                await context.write(self._outbox.popleft())
            if self._limits is not None:
                limits, self._limits = self._limits, None
                await context.write(pb.MasterMessage(limit_quotas=limits))
                continue
            if (message := self.newest()) is not None:
                await context.write(message)
                continue
            if self.closed is not None:
                return
            self._wake.clear()
            await self._wake.wait()
