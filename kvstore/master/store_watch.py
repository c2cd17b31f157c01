"""How the metadata store does: measured every few seconds, sooner when much was written, and seen at commits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from kvstore.common.errors import StoreError
from kvstore.common.logs import log_throttled
from kvstore.master.metadata.store import MetadataStore, Space, SpaceLevel
from kvstore.master.metrics import MasterMetrics

logger = logging.getLogger(__name__)

PERIOD_S = 10.0
SHORT_PERIOD_S = 1.0  # while space is short
MEASURE_S_MIN = 0.1


@dataclass(slots=True)
class StoreView:
    """As far as it has been seen."""

    level: SpaceLevel = SpaceLevel.NORMAL
    text: str = ""
    size_bytes: int | None = None
    read_error: str = ""  # of the last measurement
    commit_error: str = ""  # of the last commit


class StoreWatch:
    """`run` and `keep_up` go on for ever, side by side: upkeep may take long, and measuring must not wait for it."""

    def __init__(
        self,
        store: MetadataStore,
        metrics: MasterMetrics,
        pending_bytes: Callable[[], int],
        on_measured: Callable[[Space], None],
    ) -> None:
        """`pending_bytes`: what is on its way into the store."""
        self._store = store
        self._metrics = metrics
        self._pending_bytes = pending_bytes
        self._on_measured = on_measured
        self._soon = asyncio.Event()
        self.view = StoreView()

    def measure_soon(self) -> None:
        self._soon.set()

    async def run(self) -> None:
        """Measures, and tells."""
        while True:
            self._soon.clear()
            try:
                await self._measure()
            except StoreError as error:
                self.view.read_error = str(error)
                log_throttled(logger, logging.WARNING, "metadata_size_unknown", "", error=str(error))
            await asyncio.sleep(MEASURE_S_MIN)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._soon.wait(), self._period_s())

    async def keep_up(self) -> None:
        """Has the store do its housekeeping."""
        while True:
            try:
                await self._store.keep_up()
            except StoreError as error:
                log_throttled(logger, logging.WARNING, "metadata_upkeep_failed", "", error=str(error))
            await asyncio.sleep(self._period_s())

    async def _measure(self) -> None:
        view = self.view
        # Asked for first, so that what is stored meanwhile counts twice and not never.
        pending_bytes = self._pending_bytes()
        space = await self._store.space(pending_bytes)
        size_bytes = await self._store.size_bytes()
        view.level, view.text, view.size_bytes, view.read_error = space.level, space.text, size_bytes, ""
        self._metrics.metadata_bytes.set(size_bytes)
        self._metrics.metadata_space.set(space.level)
        self._on_measured(space)

    def _period_s(self) -> float:
        return PERIOD_S if self.view.level is SpaceLevel.NORMAL else SHORT_PERIOD_S
