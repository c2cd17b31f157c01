"""Draining: a segment that is to be emptied takes no new pages. Part of the state machine; does no IO."""

from __future__ import annotations

import logging
from dataclasses import replace

from kvstore.master.metadata.store import Put
from kvstore.master.state import layout
from kvstore.master.state.changes import DrainStored
from kvstore.master.state.effects import Commit, DrainReady, Effect, Report, RequestRefused
from kvstore.master.state.events import DrainRequested
from kvstore.master.state.membership import Membership
from kvstore.master.state.segment_table import Segment, SegmentTable
from kvstore_client.protocol import SegmentState, Status


class Draining:
    def __init__(self, table: SegmentTable, membership: Membership) -> None:
        self._table = table
        self._membership = membership

    def request(self, now: float, event: DrainRequested) -> list[Effect]:
        """Nothing is placed there from now on (or it is again); answered once that is durable."""
        segment = self._table.get(event.segment_id)
        if segment is None or segment.state is SegmentState.GONE:
            text = f"no segment {event.segment_id.hex()} is in the cluster"
            return [RequestRefused(event.request, Status.MISS, text)]
        if segment.drain_request is not None:
            text = "another change of this segment is just being stored: try again"
            return [RequestRefused(event.request, Status.UNAVAILABLE, text)]
        was = segment.record.draining
        segment.drain_request = event.request
        # At once, not when it is stored: whoever writes the record meanwhile must not undo it.
        effects = self._set(now, segment, event.draining)
        ops = (Put(layout.segment_key(segment.segment_id), segment.record.encode()),)
        change = DrainStored(segment.segment_id, segment.log, event.draining, was, event.request)
        return [Commit(ops, change), *effects]

    def _set(self, now: float, segment: Segment, draining: bool) -> list[Effect]:
        if segment.record.draining == draining:
            return []
        segment.record = replace(segment.record, draining=draining)
        return self._membership.revive(now, segment) if segment.serving else []

    def stored(self, change: DrainStored) -> list[Effect]:
        if (segment := self._current(change.segment_id, change.log)) is not None:
            segment.drain_request = None
        effects: list[Effect] = [DrainReady(change.request)]
        if change.draining != change.was_draining:
            event = "segment_draining" if change.draining else "segment_undrained"
            effects.append(Report(event, {"segment_id": change.segment_id}, logging.INFO))
        return effects

    def store_failed(self, now: float, change: DrainStored, error: str) -> list[Effect]:
        """As it was before, and stored so with the next attach: the outcome of the commit is unknown."""
        effects: list[Effect] = []
        if (segment := self._current(change.segment_id, change.log)) is not None:
            segment.drain_request = None
            segment.recorded = False
            effects = self._set(now, segment, change.was_draining)
        text = f"it could not be stored, try again: {error}"
        return [*effects, RequestRefused(change.request, Status.UNAVAILABLE, text)]

    def commit_stalled(self, error: str) -> list[Effect]:
        """Answers those who wait; what they asked for is stored all the same once the store can."""
        text = f"the metadata store fails, and it is tried again: {error}"
        return [
            RequestRefused(segment.drain_request, Status.UNAVAILABLE, text)
            for segment in self._table
            if segment.drain_request is not None
        ]

    def _current(self, segment_id: bytes, log: int) -> Segment | None:
        segment = self._table.get(segment_id)
        return segment if segment is not None and segment.log == log else None
