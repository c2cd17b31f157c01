"""Heartbeats of a segment that has no link: while it registers anew, that the last master hears it keeps its pages served."""

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
from kvstore_client.protocol.link import LIMITS

logger = logging.getLogger(__name__)

HEARTBEAT_TIMEOUT_S = 1.0


@dataclass
class HeartbeatCounters:
    """Since the process began, over every attachment, but for what a link of now has sent."""

    sent: int = 0
    failed: int = 0


class Heartbeat:
    """Beats to one master by gRPC. A link has its own, which go ahead of its journal."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        segment_id: bytes,
        pool_id: bytes,
        stats: Callable[[], dict[str, int]],
        counters: HeartbeatCounters,
        token: str = "",
    ) -> None:
        self._stub = control_pb2_grpc.ControlStub(channel)
        self._segment_id = segment_id
        self._pool_id = pool_id
        self._stats = stats
        self._counters = counters
        self._metadata = token_metadata(token)

    async def run(self, interval_s: float) -> None:
        """Until it is cancelled. Beats every `interval_s` seconds; an answer that takes longer delays the next beat, never doubles
        it.
        """
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self._beat()
            # From the due time, not from now: a slow answer does not stretch the rhythm.
            due = max(due + interval_s, loop.time())
            await asyncio.sleep(due - loop.time())

    async def _beat(self) -> None:
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
            limits=[
                pb.LimitUse(
                    used=stats[f"budget_{name}_used"],
                    limit=stats[f"budget_{name}_limit"],
                    refused=stats[f"budget_{name}_refused"],
                )
                for name in LIMITS
                if f"budget_{name}_limit" in stats
            ],
        )
        self._counters.sent += 1
        try:
            # Whether the master knows us does not matter: we are registering.
            await self._stub.Heartbeat(request, timeout=HEARTBEAT_TIMEOUT_S, metadata=self._metadata)
        except grpc.RpcError as error:
            self._counters.failed += 1
            log_event(logger, logging.DEBUG, "heartbeat_not_answered", why=str(error))
