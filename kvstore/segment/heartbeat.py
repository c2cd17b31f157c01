"""Heartbeats: their own channel and task, so that they never wait behind journal or inventory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from kvstore.common.control_metadata import token_metadata
from kvstore.common.logs import log_event
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import control_pb2_grpc

logger = logging.getLogger(__name__)

HEARTBEAT_TIMEOUT_S = 1.0
# So many beats in a row without an answer mean that the master hangs. Nothing else tells: its kernel goes on acknowledging what the
# stream sends, and gRPC's keep-alive does not end a stream for a stopped process.
SILENT_BEATS_MAX = 3


@dataclass
class HeartbeatCounters:
    """Since the process began, over every attachment."""

    sent: int = 0
    failed: int = 0


class Heartbeat:
    """Beats to one master, for as long as no other has registered us: while the stream is lost and sought again, that the master
    hears us is what keeps our pages served.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        segment_id: bytes,
        pool_id: bytes,
        stats: Callable[[], dict[str, int]],
        counters: HeartbeatCounters,
        on_worthless: Callable[[str], None],
        token: str = "",
    ) -> None:
        """`on_worthless` hears, at each beat that says so, why a stream to this master would be worth nothing."""
        self._stub = control_pb2_grpc.ControlStub(channel)
        self._segment_id = segment_id
        self._pool_id = pool_id
        self._stats = stats
        self._counters = counters
        self._on_worthless = on_worthless
        self._metadata = token_metadata(token)

    async def run(self, interval_s: float) -> None:
        """Until it is cancelled. Beats every `interval_s` seconds; an answer that takes longer delays the next beat, never doubles
        it.
        """
        loop = asyncio.get_running_loop()
        due = loop.time()
        silent = 0
        while True:
            known = await self._beat()
            silent = silent + 1 if known is None else 0
            if known is False:
                self._on_worthless("the master no longer knows this segment; attaching again")
            elif silent >= SILENT_BEATS_MAX:
                self._on_worthless(f"the master has not answered {silent} heartbeats in a row")
            # From the due time, not from now: a slow answer does not stretch the rhythm.
            due = max(due + interval_s, loop.time())
            await asyncio.sleep(due - loop.time())

    async def _beat(self) -> bool | None:
        """Whether the master has a stream of the segment; None when it did not answer."""
        stats = self._stats()
        request = pb.HeartbeatRequest(
            segment_id=self._segment_id,
            pool_id=self._pool_id,
            used_bytes=stats["used_bytes"],
            object_count=stats["object_count"],
            pinned_bytes=stats["pinned_bytes"],
            quarantined_slots=stats["quarantined_slots"],
            digest_mismatches=stats["digest_mismatches"],
            evicted_objects=stats["evicted_objects"],
        )
        self._counters.sent += 1
        try:
            reply = await self._stub.Heartbeat(request, timeout=HEARTBEAT_TIMEOUT_S, metadata=self._metadata)
        except grpc.RpcError as error:
            self._counters.failed += 1
            log_event(logger, logging.DEBUG, "heartbeat_not_answered", why=str(error))
            return None
        return bool(reply.known)
