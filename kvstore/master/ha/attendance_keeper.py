"""Keeps this master's entry in the attendance, and with it its right to answer reads while it does not lead.

A standby that is cut off from the store knows nothing of what is cleared meanwhile. It goes on to answer, for the store may be
away for everybody, and ends when its entry may have: by its own clock, counted from when it last asked for a renewal. From then
on a clear does not wait for it any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from kvstore.common.errors import StoreError
from kvstore.common.logs import log_event, log_throttled
from kvstore.master.metadata.attendance import Attendance, NoEntriesError, Stay
from kvstore.master.roles import Roles

logger = logging.getLogger(__name__)

PERIOD_S_MAX = 5.0
RETRY_DELAY_S = 0.5


class AttendanceKeeper:
    """`run()` and `confirm_forever()` until they are cancelled, then `leave()`. `applied` is told how far the directory is."""

    def __init__(self, attendance: Attendance, roles: Roles, address: str, lasts_s: float) -> None:
        self._attendance = attendance
        self._roles = roles
        self._address = address
        self._lasts_s = lasts_s
        self._period_s = min(PERIOD_S_MAX, lasts_s / 3)
        self._stay: Stay | None = None
        self._ends_at = 0.0
        self._applied = 0
        self._to_confirm = 0
        self._confirmed = 0
        self._wake = asyncio.Event()
        roles.reads_until = 0.0

    async def enter(self) -> None:
        """Before the directory is read, so that what is cleared after that waits for us. Tries for ever."""
        while True:
            try:
                await self._enter()
                return
            except StoreError as error:
                log_throttled(logger, logging.WARNING, "attendance_not_renewed", "", error=str(error))
                await asyncio.sleep(RETRY_DELAY_S)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            try:
                await self._renew()
            except StoreError as error:
                left_s = max(0.0, self._ends_at - time.monotonic())
                log_throttled(
                    logger,
                    logging.WARNING,
                    "attendance_not_renewed",
                    "",
                    error=str(error),
                    reads_s=round(left_s),
                )

    async def confirm_forever(self) -> None:
        while True:
            self._wake.clear()
            stay, revision = self._stay, self._to_confirm
            if stay is None or revision <= self._confirmed:
                await self._wake.wait()
                continue
            try:
                await self._attendance.confirm(stay, revision)
            except StoreError as error:
                log_throttled(logger, logging.WARNING, "attendance_not_renewed", "", error=str(error))
                await asyncio.sleep(RETRY_DELAY_S)
                continue
            if stay is self._stay:
                self._confirmed = revision

    async def leave(self) -> None:
        """Nobody need wait for this master any more: it answers nothing from here on."""
        self._roles.reads_until = 0.0
        stay, self._stay = self._stay, None
        if stay is not None:
            with contextlib.suppress(StoreError):
                await self._attendance.leave(stay)

    def applied(self, revision: int, namespaces_changed: bool) -> None:
        """The directory has everything up to `revision`."""
        self._applied = revision
        if namespaces_changed:
            self._confirm(revision)
        self._extend()

    async def _enter(self) -> None:
        asked_at = time.monotonic()
        try:
            self._stay = await self._attendance.enter(self._address, self._lasts_s)
        except NoEntriesError as error:
            # Nothing can be cleared now: what has been read may be answered until it is asked again.
            log_throttled(logger, logging.WARNING, "attendance_not_renewed", "", error=str(error))
            self._ends_at = self._roles.reads_until = asked_at + 2 * self._period_s
            return
        self._confirmed = self._to_confirm = 0
        self._ends_at = asked_at + self._stay.lasts_s
        self._extend()

    async def _renew(self) -> None:
        if self._stay is not None:
            asked_at = time.monotonic()
            left_s = await self._attendance.renew(self._stay, self._period_s)
            if left_s > 0:
                self._ends_at = asked_at + left_s
                self._extend()
                return
            self._stay = None
            log_event(logger, logging.WARNING, "attendance_ended", address=self._address)
        await self._enter()

    def _extend(self) -> None:
        """What was cleared before the entry was made did not wait for us: that must be known first."""
        if self._stay is None or self._applied < self._stay.revision:
            return
        self._roles.reads_until = self._ends_at
        if self._to_confirm < self._stay.revision:
            self._confirm(self._applied)

    def _confirm(self, revision: int) -> None:
        self._to_confirm = revision
        self._wake.set()
