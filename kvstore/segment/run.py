"""Runs a segment as a process: until SIGTERM or SIGINT, then out in good order."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from kvstore.common.config.segment import SegmentSettings
from kvstore.common.file_limit import raise_file_limit
from kvstore.common.logs import log_event
from kvstore.common.process_limits import limit_in_the_way
from kvstore.common.starting import finish_unless
from kvstore.segment.errors import ClusterChanged, SegmentStartError
from kvstore.segment.server import SegmentServer

logger = logging.getLogger(__name__)


async def run(settings: SegmentSettings, on_listening: Callable[[SegmentServer], None] | None = None) -> None:
    """Serves until a signal. `on_listening` is called each time that every port is bound.

    SegmentStartError when it can't start.
    """
    raise_file_limit()
    if limit := limit_in_the_way():
        raise SegmentStartError(limit)
    stopping, hurried = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        (hurried if stopping.is_set() else stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    while not stopping.is_set():
        try:
            await _serve(settings, stopping, hurried, on_listening)
        except ClusterChanged as error:  # with adopt_cluster alone
            # Not with the pages of now: epochs of namespaces may begin again there, and what was cleared would come back to life.
            reason = f"{error}: it begins anew there with an empty pool, as --adopt-cluster says"
            log_event(logger, logging.WARNING, "cluster_adopted", reason=reason)
            settings = settings.model_copy(update={"empty_pool": True})


async def _serve(
    settings: SegmentSettings,
    stopping: asyncio.Event,
    hurried: asyncio.Event,
    on_listening: Callable[[SegmentServer], None] | None,
) -> None:
    """One life of the pool."""
    server = SegmentServer(settings)
    if not await finish_unless(stopping, server.start()):
        return
    failed = asyncio.create_task(server.failed())
    stopped = asyncio.create_task(stopping.wait())
    try:
        if on_listening is not None:
            on_listening(server)
        await asyncio.wait({failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            failed.result()
        elif settings.on_term == "drain":
            await _drain(server, settings.drain_timeout_s, hurried, failed)
    finally:
        failed.cancel()
        stopped.cancel()
        await server.stop()
        log_event(
            logger,
            logging.INFO,
            "segment_stopped",
            segment_id=server.segment_id,
            pool_kept=server.kept_pool or "no",
        )


async def _drain(
    server: SegmentServer, timeout_s: float, hurried: asyncio.Event, failed: asyncio.Task[None]
) -> None:
    """Before it stops; a failure of the segment ends it, too."""
    log_event(logger, logging.INFO, "drain_began", segment_id=server.segment_id, timeout_s=timeout_s)
    draining = asyncio.create_task(server.control.drain(timeout_s, hurried))
    await asyncio.wait({draining, failed}, return_when=asyncio.FIRST_COMPLETED)
    draining.cancel()
    if failed.done():
        failed.result()
    why = draining.result()
    level = logging.INFO if why == "drained" else logging.WARNING
    log_event(logger, level, "drain_ended", segment_id=server.segment_id, why=why)
