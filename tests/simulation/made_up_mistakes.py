"""Mistakes that nobody has made: each breaks one promise, and shows that the oracle looks at it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from kvstore.etcd import etcd_pb2 as pb

from kvstore.master.committer import Committer
from kvstore.master.ha.follower import Follower
from kvstore.master.metadata.etcd_election import Election
from kvstore.master.state.changes import NamespaceStored
from kvstore.master.state.directory_state import DirectoryState
from kvstore.master.state.effects import AckJournal, Commit, Effect, RetireNamespaces
from kvstore.master.state.events import JournalReceived
from kvstore.master.state.namespaces import Namespaces
from kvstore.master.state.segment_logs import SegmentLogs
from kvstore.master.state.segment_table import Segment
from simulation.mistakes import Mistake, replaced
from simulation.scenarios import EVERYTHING, FAILING_STORE, FAILOVERS


def _acknowledged_when_accepted() -> AbstractContextManager[None]:
    def ack(segment: Segment) -> list[Effect]:
        seq = min(segment.accepted_seq, segment.stream_seq)
        if segment.session is None or not segment.registered or not seq:
            return []
        return [AckJournal(segment.session, seq)]

    return replaced((SegmentLogs, "_ack", staticmethod(ack)))


def _applied_before_it_is_committed() -> AbstractContextManager[None]:
    right = SegmentLogs.journal

    def journal(self: SegmentLogs, event: JournalReceived) -> list[Effect]:
        effects = right(self, event)
        segment = self._sender(event.session)
        if segment is not None and any(isinstance(effect, Commit) for effect in effects):
            self._index.apply(segment.index, event.groups)
        return effects

    return replaced((SegmentLogs, "journal", journal))


def _commits_are_not_fenced() -> AbstractContextManager[None]:
    always = pb.Compare(target=pb.Compare.CREATE, key=b"no such key", create_revision=0)
    return replaced((Election, "fence", lambda self, tenure: always))


def _a_leader_begins_behind() -> AbstractContextManager[None]:
    async def reached(self: Follower, revision: int) -> None:
        return

    return replaced((Follower, "reached", reached))


def _a_cleared_epoch_stays_current() -> AbstractContextManager[None]:
    right = Namespaces.stored

    def stored(self: Namespaces, change: NamespaceStored) -> list[Effect]:
        namespace = self._by_identity[change.identity]
        old = namespace.id if namespace.stored else None
        effects = right(self, change)
        if old is not None:
            self._current[old] = namespace
        return effects

    return replaced((Namespaces, "stored", stored))


def _segments_hear_of_no_clear() -> AbstractContextManager[None]:
    right = Namespaces.stored

    def stored(self: Namespaces, change: NamespaceStored) -> list[Effect]:
        return [effect for effect in right(self, change) if not isinstance(effect, RetireNamespaces)]

    return replaced((Namespaces, "stored", stored))


def _a_new_leader_serves_nothing_yet() -> AbstractContextManager[None]:
    right = DirectoryState._recover

    def recover(self: DirectoryState, now: float, known: Any, recovery_s: float) -> None:
        right(self, now, known, recovery_s)
        self.index.set_serving(known.index, False)

    return replaced((DirectoryState, "_recover", recover))


def _the_backlog_is_never_let_go() -> AbstractContextManager[None]:
    return replaced((Committer, "_release", lambda self, submission: None))


MADE_UP_MISTAKES = (
    Mistake(
        "entries are acknowledged when they are accepted",
        FAILOVERS,
        _acknowledged_when_accepted,
        ("no acknowledged page is lost", "no standby loses a page"),
    ),
    Mistake(
        "entries are applied before they are committed",
        FAILING_STORE,
        _applied_before_it_is_committed,
        ("nothing is found before it is committed",),
        30,
    ),
    Mistake("commits are not fenced", FAILOVERS, _commits_are_not_fenced, ("only the leader writes",)),
    Mistake(
        "a leader begins behind", FAILOVERS, _a_leader_begins_behind, ("no acknowledged page is lost",), 25
    ),
    Mistake(
        "a cleared epoch stays current",
        EVERYTHING,
        _a_cleared_epoch_stays_current,
        ("nothing is served after a cleared barrier",),
    ),
    Mistake("segments hear of no clear", EVERYTHING, _segments_hear_of_no_clear, ("it comes back to rest",)),
    Mistake(
        "a new leader serves nothing until segments attach",
        FAILOVERS,
        _a_new_leader_serves_nothing_yet,
        ("reads are blind only when stated",),
    ),
    Mistake(
        "the backlog is never let go", EVERYTHING, _the_backlog_is_never_let_go, ("it comes back to rest",)
    ),
)
