"""Asks the data ports of segments that clients avoid whether they answer at all, and keeps those out of placement that don't."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable

from kvstore.common.logs import log_event
from kvstore.master.metrics import MasterMetrics
from kvstore.master.state.data_paths import AVOIDED_MAX, DataPaths
from kvstore.master.state.directory_state import DirectoryState
from kvstore.master.state.segment_table import Segment
from kvstore_client.address import Address
from kvstore_client.protocol import (
    FRAME_VERSION,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    PREFIX,
    HelloRequest,
    Op,
    Role,
    Status,
    request_frame,
)

logger = logging.getLogger(__name__)

ANSWER_S = 1.0
PROBES_AT_A_TIME = 16
_WHY_NOT = {
    int(Status.WRONG_PEER): "another segment listens there",
    int(Status.UNAVAILABLE): "it takes no more connections",
}


class DataPathProbes:
    """Event loop only."""

    def __init__(self, state: DirectoryState, paths: DataPaths, metrics: MasterMetrics) -> None:
        self._state = state
        self._paths = paths
        self._metrics = metrics
        self._due = asyncio.Event()
        self._room = asyncio.Semaphore(PROBES_AT_A_TIME)
        self._probes: set[asyncio.Task[None]] = set()

    def avoided(self, indexes: Iterable[int]) -> None:
        """A client has said that these segments do not serve it."""
        now = time.monotonic()
        present = self._placeable()
        for index in list(indexes)[:AVOIDED_MAX]:
            if index in present and self._paths.avoided(now, index):
                self._due.set()

    async def run(self) -> None:
        """Probes what is due, for ever."""
        try:
            while True:
                self._due.clear()
                self._begin_probes()
                at = self._paths.next_probe_at()
                timeout_s = None if at is None else max(0.0, at - time.monotonic())
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._due.wait(), timeout_s)
        finally:
            for probe in self._probes:
                probe.cancel()
            self._paths.abandon_probes()

    def _begin_probes(self) -> None:
        present = self._placeable()
        for index in self._paths.due(time.monotonic(), present):
            probe = asyncio.create_task(self._probe(present[index]))
            self._probes.add(probe)
            probe.add_done_callback(self._probes.discard)
        self._metrics.data_paths_shut.set(len(self._paths.shut))

    def _placeable(self) -> dict[int, Segment]:
        return {segment.index: segment for segment in self._state.segments if segment.placeable}

    async def _probe(self, segment: Segment) -> None:
        endpoint = segment.record.endpoint
        async with self._room:
            why = await why_no_answer(endpoint.host, endpoint.tcp_port, endpoint.pool_id)
        if self._paths.probed(time.monotonic(), segment.index, not why):
            address = str(Address(endpoint.host, endpoint.tcp_port))
            if segment.index in self._paths.shut:
                log_event(
                    logger,
                    logging.WARNING,
                    "data_path_shut",
                    segment=segment.index,
                    address=address,
                    why=why,
                )
            else:
                log_event(logger, logging.INFO, "data_path_open", segment=segment.index, address=address)
        self._due.set()  # when to probe next has changed


async def why_no_answer(host: str, port: int, pool_id: bytes) -> str:
    """Empty: who listens there answers as the segment of this pool, within ANSWER_S."""
    try:
        return await asyncio.wait_for(_greet(host, port, pool_id), ANSWER_S)
    except (asyncio.TimeoutError, TimeoutError):
        return f"no answer within {ANSWER_S:g} s"
    except Exception as error:  # an address that is none, what closes at once, a frame that is none
        return str(error) or type(error).__name__


async def _greet(host: str, port: int, pool_id: bytes) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        # As a tool without a token, which looks whether a segment is there: its UNAUTHORIZED is an answer, too.
        writer.write(request_frame(Op.HELLO, 1, HelloRequest(Role.TOOL, expected_peer=pool_id).encode()))
        magic, version, *_ = HEADER.unpack(await reader.readexactly(HEADER_BYTES))
        if (magic, version) != (MAGIC, FRAME_VERSION):
            return "what listens there does not speak the protocol"
        status = PREFIX.unpack(await reader.readexactly(PREFIX.size))[0]
        return _WHY_NOT.get(status, "")
    finally:
        writer.transport.abort()  # nothing more is said, and nobody waits for a hung peer to close
