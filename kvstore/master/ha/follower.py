"""A standby's directory: read once, then kept warm by following the store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from kvstore.common.backoff import Backoff
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
RELOAD_DELAY_S_MIN = 0.1
RELOAD_DELAY_S_MAX = 5.0
LAG_PERIOD_S = 1.0


class Follower:
    """`load()`, then `run()`, `reload()` and `watch_lag()` until they are cancelled. `replay` may be taken over when they have
    ended and `reached` was true."""

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
        self._to_reload = asyncio.Event()
        self._went_back = asyncio.Event()
        self._changing = (
            asyncio.Lock()
        )  # the replay, by the changes that are followed or by reading a log again
        self.replay: Replay
        self.standby: Standby
        self.revision = 0  # everything up to it is applied
        self.ready_revision: int | None = None
        self.loads = 0

    @property
    def ready(self) -> bool:
        """Whether everything that was committed when it started is applied, and no log is still to be read again."""
        caught_up = self.ready_revision is not None and self.revision >= self.ready_revision
        return caught_up and not self.replay.to_reload

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
        self.loads += 1
        if outdated is not None:
            self.standby.replace(replay, revision)
            await asyncio.to_thread(outdated.clear)
        else:
            self.standby = Standby(self._roles, replay, revision)
        self._on_applied(revision, True)
        self._metrics.logs_to_reload.set(0)
        self._metrics.watch_replay(replay)
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
                await self._follow()
            except RevisionGoneError as error:
                # Away for longer than the store keeps its past: start again from its present.
                log_throttled(logger, logging.WARNING, "directory_reload", "", why=str(error))
                self._metrics.directory_reloads.inc()
                async with self._changing:
                    await self.load()
                self._has_advanced()
            except NewerFormatError:
                raise
            except StoreError as error:
                log_throttled(logger, logging.WARNING, "follow_failed", "", error=str(error))
                await asyncio.sleep(RETRY_DELAY_S)

    async def _follow(self) -> None:
        """Until the store has an older past than what is applied. Raises StoreError, RevisionGoneError, NewerFormatError."""
        self._went_back.clear()
        following = asyncio.create_task(self._apply_all(), name="follower-updates")
        waiting = asyncio.create_task(self._went_back.wait(), name="follower-went-back")
        try:
            await asyncio.wait({following, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
            else:
                raise RevisionGoneError("the store is another one, or was restored: its revision went back")
        finally:
            for task in (following, waiting):
                task.cancel()
            await asyncio.gather(following, waiting, return_exceptions=True)

    async def _apply_all(self) -> None:
        async for update in self._store.follow(self.revision):
            await self._apply(update)

    async def went_back(self) -> bool:
        """Whether the store has an older past than what is applied: it was wiped, or restored. Raises StoreError."""
        known = self.revision
        newest, _ = await self._store.revisions()
        return newest < known

    async def reached(self, revision: int) -> None:
        """Until everything up to `revision` is applied."""
        while self.revision < revision or self.replay.to_reload:
            await self._advanced.wait()

    async def _apply(self, update: Update) -> None:
        registry_changed = namespaces_changed = False
        async with self._changing:
            for change in update.changes:
                registry_changed |= change.key.startswith(layout.SEGMENTS_PREFIX)
                namespaces_changed |= change.key.startswith(layout.NAMESPACES_PREFIX)
                self.replay.follow(change)
            self.revision = update.revision
            if self.replay.to_reload:
                # Mostly it works at once, and the reader of a page that was just moved finds it.
                await self._reload()
        if registry_changed:
            self.standby.records_changed(update.revision)
        self._on_applied(update.revision, namespaces_changed)
        self._has_advanced()
        if registry_changed:
            await sweep(self.replay.index)

    async def reload(self) -> None:
        """Reads again what could not be read when it was replaced, until it can."""
        backoff = Backoff(RELOAD_DELAY_S_MIN, RELOAD_DELAY_S_MAX)
        while True:
            if not self.replay.to_reload:
                backoff.reset()
                self._to_reload.clear()
                await self._to_reload.wait()
            await asyncio.sleep(backoff.next_delay_s())
            async with self._changing:
                await self._reload()
            self._has_advanced()
            await sweep(self.replay.index)

    async def _reload(self) -> None:
        """What can't be read now stays to be read, and is served as it was."""
        for segment_id in list(self.replay.to_reload):
            try:
                # Of now: the moment when it was replaced may not be kept any more.
                revision, _ = await self._store.revisions()
                await reload_segment(self.replay, self._store.at(revision), segment_id)
            except StoreError as error:
                log_throttled(
                    logger, logging.WARNING, "log_not_reloaded", "", segment_id=segment_id, error=str(error)
                )
                break
        self._metrics.logs_to_reload.set(len(self.replay.to_reload))
        if self.replay.to_reload:
            self._to_reload.set()

    def _has_advanced(self) -> None:
        self._advanced.set()
        self._advanced = asyncio.Event()

    async def watch_lag(self) -> None:
        """Keeps saying how far behind the directory is, and who leads."""
        while True:
            try:
                known = self.revision
                newest, newest_commit = await self._store.revisions()
                if newest < known:
                    self._went_back.set()
                if self.ready_revision is None:
                    self.ready_revision = newest_commit
                self._roles.lag_revisions = max(0, newest_commit - self.revision)
                self._metrics.watch_lag.set(self._roles.lag_revisions)
                self._roles.leader_address = await self._store.leader_address() or ""
            except StoreError as error:
                log_throttled(logger, logging.WARNING, "watch_lag_unknown", "", error=str(error))
            await asyncio.sleep(LAG_PERIOD_S)
