"""Mistakes that were made once, put back."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from kvstore.common.core_tasks import CoreTasks
from kvstore.common.errors import FencedError, StoreError
from kvstore.master.committer import Committer
from kvstore.master.state import segment_logs
from kvstore.master.state.effects import Effect
from kvstore.master.state.events import StreamLost
from kvstore.master.state.journal_entries import Staged, StagedRecord, staged_journal
from kvstore.master.state.membership import Membership
from kvstore.master.state.records import Record, RecordKind
from kvstore_client.protocol.journal import count_entries
from simulation import old_compaction, old_membership, old_reload
from simulation.mistakes import Mistake, replaced
from simulation.scenarios import (
    BAD_MEMORY,
    CLEARS,
    CLONES,
    FAILING_STORE,
    INVENTORIES,
    SNAPSHOTS,
    TIGHT_STORE,
)


def _entries_are_not_checked() -> AbstractContextManager[None]:
    """What can't be applied is committed first, and ends the committer when it is applied; nobody watches that task."""

    def unchecked(groups: bytes, first_seq: int, accepted_seq: int, entries_max: int) -> Staged:
        entries = count_entries(groups)
        if first_seq <= accepted_seq:
            return staged_journal(groups, first_seq, accepted_seq, entries_max)  # sent again: no matter here
        record = Record(RecordKind.JOURNAL, first_seq, first_seq + entries - 1, groups).encode()
        return Staged(entries, 0, False, [StagedRecord(entries, groups, record)])

    def unwatched(self: CoreTasks, task: Any, endless: bool) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    return replaced((segment_logs, "staged_journal", unchecked), (CoreTasks, "_ended", unwatched))


def _commits_are_not_tried_again() -> AbstractContextManager[None]:
    """One commit that fails fails all that is queued, closes the streams of their segments, and a lost stream unserves."""

    async def commit_once(self: Committer, group: Any, commits: Any) -> None:
        try:
            await self._store.commit_together(commits, self._fence)
        except StoreError as error:
            self._fail(group, error)
            if isinstance(error, FencedError):
                self._on_fenced(error)
            return
        for submission in group:
            self._release(submission)
            if submission.done is not None and not submission.done.done():
                submission.done.set_result(None)
            if submission.change is not None:
                self._on_done(submission.change)

    def stream_lost(self: Membership, now: float, event: StreamLost) -> list[Effect]:
        segment = self._table.of_session(event.session)
        if segment is None:
            return []
        self._table.release(segment)
        return self._suspect(now, segment, "its stream broke") if segment.serving else []

    return replaced((Committer, "_commit", commit_once), (Membership, "stream_lost", stream_lost))


OLD_MISTAKES = (
    Mistake(
        "one bad entry ends the committer",
        BAD_MEMORY,
        _entries_are_not_checked,
        ("it comes back to rest", "puts work again"),
    ),
    Mistake(
        "a failing store blinds reads",
        FAILING_STORE,
        _commits_are_not_tried_again,
        ("reads are blind only when stated",),
    ),
    Mistake(
        "all logs are written anew at once where there is no room",
        TIGHT_STORE,
        old_compaction.all_at_once,
        ("it comes back to rest", "puts work again"),
        25,
    ),
    Mistake(
        "a log is compacted while its inventory is on its way",
        SNAPSHOTS,
        old_compaction.while_an_inventory_is_on_its_way,
        ("no standby loses a page", "no acknowledged page is lost"),
        15,
    ),
    Mistake(
        "a standby tries once to read a log again",
        INVENTORIES,
        old_reload.a_reload_is_tried_once,
        ("no standby loses a page", "no acknowledged page is lost"),
        15,
    ),
    Mistake(
        "the last segment to come has the id",
        CLONES,
        old_membership.the_last_to_come_has_the_id,
        ("a segment keeps its id",),
    ),
    Mistake(
        "the first segment to come after a fail-over has the id",
        CLONES,
        old_membership.the_first_to_come_has_the_id,
        ("a segment keeps its id",),
    ),
    Mistake(
        "a late confirmation of a clear takes back a newer one",
        CLEARS,
        old_membership.confirmations_replace_whatever_is_there,
        ("it comes back to rest",),
        40,
    ),
)
