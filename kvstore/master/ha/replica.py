"""One master of several: it follows, and leads while it is elected.

    (start) -> load -> STANDBY -> elected, caught up -> LEADER -> tenure ended -> load -> STANDBY ...

The ports serve reads all the while, but for the first load.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine

from kvstore.common.core_tasks import CoreTasks
from kvstore.common.errors import KvstoreError, StoreError
from kvstore.common.logs import log_event, log_throttled
from kvstore.master.directory import Directory
from kvstore.master.ha.attendance_keeper import AttendanceKeeper
from kvstore.master.ha.follower import Follower
from kvstore.master.ha.fresh_reads import FreshReads
from kvstore.master.ha.map_mirror import mirror
from kvstore.master.metadata.replicated import ReplicatedStore, Tenure
from kvstore.master.metadata.store import Fence
from kvstore.master.metrics import MasterMetrics
from kvstore.master.recovery import corruption_reporter, recover, take_over
from kvstore.master.roles import CUT_OFF_TEXT, Roles, Standby
from kvstore.master.state.directory_state import Recovered

logger = logging.getLogger(__name__)

RETRY_DELAY_S = 0.5
# A new leader whose follower does not catch up in this reads the records itself.
CATCH_UP_TIMEOUT_S = 5.0


class Replica:
    """start() returns when there is a directory to read; stop() ends the role it has, cleanly. `leads` makes the directory of a
    leader; `on_failed` hears of an error that nothing here can handle; `token` is that of all masters."""

    def __init__(
        self,
        store: ReplicatedStore,
        roles: Roles,
        metrics: MasterMetrics,
        leads: Callable[[Fence, Recovered], Directory],
        on_failed: Callable[[KvstoreError], None],
        token: str,
        keeper: AttendanceKeeper | None = None,
    ) -> None:
        """`keeper`: of this master's entry among those who read the store, where that is kept."""
        self._store = store
        self._roles = roles
        self._metrics = metrics
        self._leads = leads
        self._on_failed = on_failed
        self._token = token
        self._keeper = keeper
        self._follower: Follower | None = None
        self._tasks = CoreTasks(on_failed)

    async def start(self) -> None:
        if self._keeper is not None:
            await self._keeper.enter()
        self._follower = self._new_follower()
        await self._follower.load()
        self._roles.stand_by(self._follower.standby)
        if self._keeper is not None:
            self._tasks.start(self._keeper.run(), "attendance")
            self._tasks.start(self._keeper.confirm_forever(), "attendance-confirmations")
        self._tasks.start(self._run(), "replica")

    def _new_follower(self) -> Follower:
        if self._keeper is None:
            return Follower(self._store, self._roles, self._metrics)
        return Follower(self._store, self._roles, self._metrics, self._keeper.applied)

    async def stop(self) -> None:
        """Idempotent."""
        await self._tasks.stop()
        if self._roles.directory is not None:
            await self._roles.directory.stop()
        self._metrics.is_leader.set(0)
        if self._keeper is not None:
            await self._keeper.leave()
        with contextlib.suppress(StoreError):
            await self._store.resign()

    @property
    def readiness(self) -> tuple[bool, str]:
        if self._roles.directory is not None:
            return True, "leader"
        if self._follower is None or not self._follower.ready:
            return False, "the standby has not caught up yet"
        if self._roles.is_cut_off:
            return False, CUT_OFF_TEXT
        return True, "standby"

    async def _run(self) -> None:
        assert self._follower is not None
        while True:
            tenure, recovered = await self._follow_until_elected(self._follower)
            if recovered is not None:
                await self._lead(tenure, recovered)
            await self._store.resign()
            outdated = self._follower.replay.index if recovered is None else recovered.index
            self._follower = self._new_follower()
            await self._follower.load()
            self._roles.stand_by(self._follower.standby)
            # It was read from until now. Not left to whatever else still refers to it: it may be gigabytes.
            await asyncio.to_thread(outdated.clear)

    async def _follow_until_elected(self, follower: Follower) -> tuple[Tenure, Recovered | None]:
        """Recovered is None when the tenure ended before it could begin."""
        tasks = CoreTasks(self._on_failed)
        fresh_reads = FreshReads(self._newest_commit, follower.reached, self._metrics)
        self._roles.fresh_reads = fresh_reads
        tasks.start(follower.run(), "follower")
        tasks.keep(follower.reload, "follower-reload")
        tasks.keep(follower.watch_lag, "follower-lag")
        tasks.keep(lambda: mirror(self._roles, follower.standby, self._token), "map-mirror")
        try:
            tenure = await self._campaign()
            log_event(logger, logging.INFO, "elected", term=tenure.fence.term, revision=tenure.revision)
            caught_up = await self._within_tenure(
                tenure, asyncio.wait_for(follower.reached(tenure.revision), CATCH_UP_TIMEOUT_S)
            )
        finally:
            self._roles.fresh_reads = None
            fresh_reads.close()
            await tasks.stop()
        self._metrics.watch_lag.set(0)
        try:
            if caught_up and not await follower.went_back():
                return tenure, await take_over(follower.replay, self._store, tenure.fence)
            if tenure.ended.is_set():
                return tenure, None
            log_event(logger, logging.WARNING, "standby_was_behind", revision=follower.revision)
            return tenure, await recover(self._store, tenure.fence, corruption_reporter(self._metrics))
        except StoreError as error:
            log_throttled(logger, logging.ERROR, "could_not_take_over", "", error=str(error))
            return tenure, None

    async def _newest_commit(self) -> int:
        return (await self._store.revisions())[1]

    async def _campaign(self) -> Tenure:
        while True:
            try:
                return await self._store.campaign()
            except StoreError as error:
                log_throttled(logger, logging.WARNING, "campaign_failed", "", error=str(error))
                await asyncio.sleep(RETRY_DELAY_S)

    @staticmethod
    async def _within_tenure(tenure: Tenure, work: Coroutine[None, None, None]) -> bool:
        """Whether the work was done before the tenure ended or its time was up."""
        working = asyncio.ensure_future(work)
        ending = asyncio.ensure_future(tenure.ended.wait())
        try:
            await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
            return working.done() and working.exception() is None
        finally:
            for future in (working, ending):
                future.cancel()
            await asyncio.gather(working, ending, return_exceptions=True)

    async def _lead(self, tenure: Tenure, recovered: Recovered) -> None:
        if tenure.ended.is_set():
            return
        directory = self._leads(tenure.fence, recovered)
        directory.start()
        self._roles.lead(directory, tenure)
        if self._follower is not None and self._follower.replay.index is not recovered.index:
            await asyncio.to_thread(self._follower.replay.index.clear)
        self._metrics.is_leader.set(1)
        self._metrics.leader_changes.inc()
        log_event(
            logger,
            logging.INFO,
            "leading",
            term=tenure.fence.term,
            cluster_id=recovered.cluster.cluster_id,
            segments=len(recovered.segments),
            entries=recovered.index.entry_count,
        )
        await tenure.ended.wait()
        log_event(logger, logging.ERROR, "leadership_lost", term=tenure.fence.term, why=tenure.why)
        self._metrics.is_leader.set(0)
        self._roles.stand_by(Standby.resigned(self._roles, directory.state))
        self._roles.leader_address = ""
        self._metrics.unwatch()
        await directory.stop()
