"""A standby's directory: read once, then kept warm by following the store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from kvstore.common.errors import NewerFormatError, StoreError
from kvstore.common.logs import log_event, log_throttled
from kvstore.master.index_sweeper import sweep
from kvstore.master.metadata.replicated import ReplicatedStore, RevisionGoneError, Update
from kvstore.master.metrics import MasterMetrics
from kvstore.master.recovery import corruption_reporter, load, reload_segment
from kvstore.master.roles import Roles, Standby
from kvstore.master.state import layout
from kvstore.master.state.replay import Replay

logger = logging.getLogger(__name__)

RETRY_DELAY_S = 0.5
LAG_PERIOD_S = 1.0


class Follower:
    """`load()`, then `run()` and `watch_lag()` until they are cancelled. `replay` may be taken over when `run` has ended."""

    def __init__(
        self,
        store: ReplicatedStore,
        roles: Roles,
        metrics: MasterMetrics,
        on_applied: Callable[[int, bool], None] = lambda revision, namespaces_changed: None,
    ) -> None:
        """`on_applied(revision, namespaces_changed)`: the directory has everything up to `revision`."""
        self._store = store
        self._on_applied = on_applied
        self._roles = roles
        self._metrics = metrics
        self._advanced = asyncio.Event()
        self.replay: Replay
        self.standby: Standby
        self.revision = 0  # everything up to it is applied
        self.ready_revision: int | None = None
        self.loads = 0

    @property
    def ready(self) -> bool:
        """Whether everything that was committed when it started is applied."""
        return self.ready_revision is not None and self.revision >= self.ready_revision

    async def load(self) -> None:
        """Returns when the directory is loaded; tries for ever. Raises NewerFormatError."""
        while True:
            try:
                await self._load()
                return
            except NewerFormatError:
                raise
            except StoreError as error:
                log_throttled(logger, logging.WARNING, "directory_not_loaded", "", error=str(error))
                await asyncio.sleep(RETRY_DELAY_S)

    async def _load(self) -> None:
        started = time.monotonic()
        revision, _ = await self._store.revisions()
        replay = await load(self._store.at(revision), corruption_reporter(self._metrics))
        outdated = self.replay.index if self.loads else None
        self.replay, self.revision = replay, revision
        if outdated is not None:
            self.standby.replace(replay, revision)
            await asyncio.to_thread(outdated.clear)
        else:
            self.standby = Standby(self._roles, replay, revision)
        self.loads += 1
        self._on_applied(revision, True)
        log_event(
            logger,
            logging.INFO,
            "directory_loaded",
            revision=revision,
            entries=replay.index.entry_count,
            segments=len(replay.logs),
            seconds=round(time.monotonic() - started, 3),
        )

    async def run(self) -> None:
        """Keeps the directory warm. Raises NewerFormatError: what it has is no longer what is stored."""
        while True:
            try:
                async for update in self._store.follow(self.revision):
                    await self._apply(update)
            except RevisionGoneError as error:
                # Away for longer than the store keeps its past: start again from its present.
                log_throttled(logger, logging.WARNING, "directory_reload", "", why=str(error))
                self._metrics.directory_reloads.inc()
                await self.load()
            except NewerFormatError:
                raise
            except StoreError as error:
                log_throttled(logger, logging.WARNING, "follow_failed", "", error=str(error))
                await asyncio.sleep(RETRY_DELAY_S)

    async def reached(self, revision: int) -> None:
        """Until everything up to `revision` is applied."""
        while self.revision < revision:
            await self._advanced.wait()

    async def _apply(self, update: Update) -> None:
        registry_changed = namespaces_changed = False
        for change in update.changes:
            registry_changed |= change.key.startswith(layout.SEGMENTS_PREFIX)
            namespaces_changed |= change.key.startswith(layout.NAMESPACES_PREFIX)
            segment_id = self.replay.follow(change)
            if segment_id is not None:
                await reload_segment(self.replay, self._store.at(update.revision), segment_id)
        self.revision = update.revision
        if registry_changed:
            self.standby.records_changed(update.revision)
        self._on_applied(update.revision, namespaces_changed)
        self._advanced.set()
        self._advanced = asyncio.Event()
        if registry_changed:
            await sweep(self.replay.index)

    async def watch_lag(self) -> None:
        """Keeps saying how far behind the directory is, and who leads."""
        while True:
            try:
                _, newest_commit = await self._store.revisions()
                if self.ready_revision is None:
                    self.ready_revision = newest_commit
                self._roles.lag_revisions = max(0, newest_commit - self.revision)
                self._metrics.watch_lag.set(self._roles.lag_revisions)
                self._roles.leader_address = await self._store.leader_address() or ""
            except StoreError as error:
                log_throttled(logger, logging.WARNING, "watch_lag_unknown", "", error=str(error))
            await asyncio.sleep(LAG_PERIOD_S)
