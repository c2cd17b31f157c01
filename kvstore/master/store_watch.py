"""How the metadata store does: measured every few seconds, and seen at commits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from kvstore.common.errors import StoreError
from kvstore.common.logs import log_throttled
from kvstore.master.metadata.store import MetadataStore, SpaceLevel
from kvstore.master.metrics import MasterMetrics

logger = logging.getLogger(__name__)

PERIOD_S = 10.0


@dataclass(slots=True)
class StoreView:
    """As far as it has been seen."""

    level: SpaceLevel = SpaceLevel.NORMAL
    text: str = ""
    size_bytes: int | None = None
    read_error: str = ""  # of the last measurement
    commit_error: str = ""  # of the last commit


async def watch_store(
    store: MetadataStore,
    view: StoreView,
    metrics: MasterMetrics,
    on_measured: Callable[[SpaceLevel, str], None],
) -> None:
    """For ever: measures, tells, and has the store do its housekeeping."""
    while True:
        try:
            size_bytes = await store.size_bytes()
            level, text = await store.space()
            view.level, view.text, view.size_bytes, view.read_error = level, text, size_bytes, ""
            metrics.metadata_bytes.set(size_bytes)
            metrics.metadata_space.set(level)
            on_measured(level, text)
            await store.trim()
        except StoreError as error:
            view.read_error = str(error)
            log_throttled(logger, logging.WARNING, "metadata_size_unknown", "", error=str(error))
        await asyncio.sleep(PERIOD_S)
