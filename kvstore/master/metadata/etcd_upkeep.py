"""Keeps etcd's space in order: drops the past, defragments one member at a time, ends a NOSPACE alarm when there is room again.

The leader does it. Where an alarm keeps anybody from being elected, whoever wants to lead does, one of them at a time: as etcd takes
no puts then, the right to do it is a key that is there beforehand, and belongs to whoever deletes it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

from kvstore.common.errors import StoreError
from kvstore.common.logs import log_event, log_throttled
from kvstore.master.metadata.etcd_client import EtcdClient
from kvstore.master.metadata.etcd_options import EtcdOptions
from kvstore.master.metadata.etcd_space import Usage, defrag_pays, drop_steps, history_s, level_of
from kvstore.master.metadata.store import SpaceLevel

logger = logging.getLogger(__name__)

MOMENTS_MAX = 64
# A member that was defragmented is left alone for so long, however short space is.
DEFRAG_S_MIN = 5.0
# etcd rewrites its file at 100 MB/s on a good disk.
DEFRAG_BYTES_PER_S = 10 << 20
DEFRAG_TIMEOUT_S_MIN = 30.0
# How far back the past that an earlier leader has left is dropped in steps.
UNKNOWN_PAST_REVISIONS = 1024
# Whoever took the right to end an alarm has died of it.
RIGHT_LOST_S = 60.0


class EtcdUpkeep:
    def __init__(self, client: EtcdClient, options: EtcdOptions, internal_prefix: bytes) -> None:
        self._client = client
        self._options = options
        self.right_key = internal_prefix + b"upkeep"
        self._marker_key = internal_prefix + b"marker"
        # (when, the newest revision then), oldest first
        self._moments: deque[tuple[float, int]] = deque(maxlen=MOMENTS_MAX)
        self._dropped_to: int | None = None
        self._defragmented_at: dict[int, float] = {}  # by member
        self._largest_file_bytes = 0  # of all members, when they were last asked
        self._right_missing_since: float | None = None

    async def usage(self) -> Usage:
        """Raises StoreError."""
        status = await self._client.status()
        alarm = bool(await self._client.nospace_alarms())
        # Each member holds its own file against the quota.
        file_bytes = max(status.db_size, self._largest_file_bytes)
        return Usage(status.db_size_in_use, file_bytes, self._options.quota_bytes, alarm)

    async def keep_up(self, level: SpaceLevel) -> None:
        """For the leader, every few seconds. Raises StoreError."""
        usage = await self.usage()
        await self._drop_past(history_s(usage, level, self._options.compact_period_s))
        if usage.alarm:
            await self._end_alarm()
        else:
            await self._defragment(full=level is SpaceLevel.FULL)

    async def end_alarm_without_leader(self) -> None:
        """For a candidate that was refused for want of space. Raises StoreError."""
        if not await self._client.nospace_alarms() or not await self._take_right():
            return
        log_event(logger, logging.WARNING, "etcd_recovering", why="no leader can be elected")
        await self._drop_past(0.0)
        await self._end_alarm()

    # ---- the past ------------------------------------------------------------------------------------------

    async def _drop_past(self, keep_s: float) -> None:
        if not self._options.compact_period_s:
            return
        now = time.monotonic()
        _, revision = await self._client.get(self._marker_key)
        if not self._moments or now - self._moments[-1][0] >= keep_s / (MOMENTS_MAX / 2):
            self._moments.append((now, revision))
        due = 0
        while self._moments and now - self._moments[0][0] >= keep_s:
            due = self._moments.popleft()[1]
        if not due:
            return
        begins = self._dropped_to if self._dropped_to is not None else max(0, due - UNKNOWN_PAST_REVISIONS)
        for revision in drop_steps(begins, due, self._options.quota_bytes):
            await self._client.compact(revision)
        self._dropped_to = due
        log_event(logger, logging.DEBUG, "etcd_compacted", revision=due)

    # ---- the file ------------------------------------------------------------------------------------------

    async def _defragment(self, *, full: bool) -> None:
        """Those members for which it pays, one after the other."""
        while self._options.defrag_period_s:
            # Anew each time: the one before may not have come back, another may have failed, etcd's leader may be another.
            due = [each for each in await self._members() if self._is_due(each[1], full)]
            if not due:
                return
            endpoint, status = due[0]
            started = self._defragmented_at[status.header.member_id] = time.monotonic()
            timeout_s = max(DEFRAG_TIMEOUT_S_MIN, status.db_size / DEFRAG_BYTES_PER_S)
            await self._client.defragment(endpoint, timeout_s)
            after = await self._client.status_of(endpoint)
            log_event(
                logger,
                logging.INFO,
                "etcd_defragmented",
                endpoint=self._client.endpoints[endpoint],
                before_bytes=status.db_size,
                after_bytes=after.db_size,
                seconds=round(time.monotonic() - started, 3),
            )

    def _is_due(self, status: Any, full: bool) -> bool:
        usage = self._usage_of(status)
        period_s = self._options.defrag_period_s
        if full or level_of(usage, SpaceLevel.NORMAL) is SpaceLevel.FULL:
            period_s = min(period_s, DEFRAG_S_MIN)
        before = self._defragmented_at.get(status.header.member_id, float("-inf"))
        return defrag_pays(usage) and time.monotonic() - before >= period_s

    async def _members(self) -> list[tuple[int, Any]]:
        """(endpoint, status) of each member, etcd's leader last; empty unless all of the cluster are known and run."""
        by_id: dict[int, tuple[int, Any]] = {}
        for endpoint in range(len(self._client.endpoints)):
            try:
                status = await self._client.status_of(endpoint)
            except StoreError as error:
                log_throttled(logger, logging.WARNING, "etcd_member_down", "", error=str(error))
                return []
            if not status.leader:
                return []  # it has no majority
            by_id.setdefault(status.header.member_id, (endpoint, status))
        voters = await self._client.voters()
        if not voters <= by_id.keys():
            log_throttled(
                logger,
                logging.WARNING,
                "etcd_members_unknown",
                "",
                members=len(voters),
                named=len(by_id),
                remedy="name every member of etcd in --metadata",
            )
            return []
        self._largest_file_bytes = max(status.db_size for _, status in by_id.values())
        return sorted(by_id.values(), key=lambda each: each[1].leader == each[1].header.member_id)

    def _usage_of(self, status: Any) -> Usage:
        alarm = any("NOSPACE" in error for error in status.errors)
        return Usage(status.db_size_in_use, status.db_size, self._options.quota_bytes, alarm)

    # ---- alarm ---------------------------------------------------------------------------------------------

    async def _end_alarm(self) -> None:
        await self._defragment(full=True)
        members = await self._members()
        fullest = max((status.db_size for _, status in members), default=None)
        if fullest is None or fullest >= self._options.quota_bytes:
            log_throttled(
                logger,
                logging.ERROR,
                "etcd_stays_full",
                "",
                file_bytes=fullest,
                quota_bytes=self._options.quota_bytes,
                remedy="raise --quota-backend-bytes and quota_bytes, or remove what else is in this etcd",
            )
            return
        for member_id in await self._client.nospace_alarms():
            await self._client.disarm(member_id)
            log_event(logger, logging.WARNING, "etcd_alarm_ended", member=f"{member_id:x}")

    async def _take_right(self) -> bool:
        """Whether this process alone may end the alarm."""
        if await self._client.delete(self.right_key):
            self._right_missing_since = None
            return True
        now = time.monotonic()
        if self._right_missing_since is None:
            self._right_missing_since = now
        if now - self._right_missing_since < RIGHT_LOST_S:
            return False
        self._right_missing_since = now
        return True
