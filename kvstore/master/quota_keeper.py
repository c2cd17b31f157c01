"""Keeps tenants to their quotas: tells each segment its part of them, and says what is not to be placed. Event loop only."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Protocol

from kvstore.common.logs import log_throttled
from kvstore.master.metrics import MasterMetrics
from kvstore.master.state.directory_state import DirectoryState
from kvstore.master.state.layout import QuotaRecord
from kvstore.master.state.quota_shares import Shares, divide, is_far_above
from kvstore.v1 import control_pb2 as pb

logger = logging.getLogger(__name__)

LOOK_S = 1.0


class LimitedSession(Protocol):
    """The part of a segment's session that is told."""

    def limit_quotas(self, limits: Any) -> None: ...


class QuotaKeeper:
    def __init__(self, state: DirectoryState, metrics: MasterMetrics) -> None:
        self._state = state
        self._metrics = metrics
        self._looked_at = float("-inf")
        self._full: dict[bytes, QuotaRecord] = {}  # by namespace: nothing of it is placed
        self._shares: list[tuple[bytes, Shares]] = []  # ids of the namespaces together, and their shares
        self._divided_for = -1  # version of the namespaces
        self._told: dict[int, bytes] = {}  # by session: what it was told last, where that is anything

    def look(
        self, now: float, sessions: Iterable[tuple[int, LimitedSession]], *, at_once: bool = False
    ) -> None:
        """Once in LOOK_S, or `at_once`: where everybody is, and tells who has to keep to something else than before."""
        if now - self._looked_at < LOOK_S and not at_once:
            return
        self._looked_at = now
        if not len(self._state.quotas) and not self._told and not self._shares:
            return
        self._divide()
        there = dict(sessions)
        self._told = {number: told for number, told in self._told.items() if number in there}
        for segment in self._state.segments:
            if segment.session is not None and segment.registered and segment.session in there:
                self._tell(segment.session, segment.index, there[segment.session])

    def opened(self, now: float, ns: bytes, sessions: Iterable[tuple[int, LimitedSession]]) -> None:
        """The id is current from now on: who has to keep it to a quota is told before any page of it comes."""
        if self._state.quotas.concern(ns) and self._divided_for != self._state.namespaces.version:
            self.look(now, sessions, at_once=True)

    def limits_of(self, index: int) -> Any:
        """What a segment has to keep to now (pb.LimitQuotas)."""
        if len(self._state.quotas) and not self._shares:
            self._divide()
        return pb.LimitQuotas(
            limits=[
                pb.QuotaLimit(namespaces=namespaces, limit_bytes=shares.of(index))
                for namespaces, shares in self._shares
                if namespaces
            ]
        )

    def joined(self, session: int, index: int) -> None:
        """The segment was told its limits when it was accepted."""
        self._tell(session, index, None)

    def refuses(self, ns: bytes) -> bool:
        """Whether nothing of the namespace is to be placed; counts it, and says so in the log."""
        quota = self._full.get(ns)
        if quota is None:
            return False
        self._metrics.quota_refused.inc()
        of = quota.subject.decode()[:200]
        fields = {"kind": quota.kind.value, "of": of, "limit_bytes": quota.limit_bytes}
        log_throttled(logger, logging.WARNING, "quota_refused", of, **fields)
        return True

    def _divide(self) -> None:
        state = self._state
        self._divided_for = state.namespaces.version
        takers = sum(segment.placeable for segment in state.segments)
        self._shares, self._full = [], {}
        over = 0
        for group in state.quotas.groups():
            limit_bytes = group.quota.limit_bytes
            held: dict[int, int] = {}
            for ns in group.namespaces:
                for segment, size_bytes in state.index.namespace_parts(ns).items():
                    held[segment] = held.get(segment, 0) + size_bytes
            used = sum(held.values())
            over += used > limit_bytes
            self._shares.append((b"".join(group.namespaces), divide(limit_bytes, held, takers)))
            if is_far_above(limit_bytes, used, takers):
                self._full.update(dict.fromkeys(group.namespaces, group.quota))
        self._metrics.quotas.set(len(self._shares))
        self._metrics.quotas_exceeded.set(over)

    def _tell(self, session: int, index: int, segment: LimitedSession | None) -> None:
        limits = self.limits_of(index)
        encoded = limits.SerializeToString(deterministic=True)
        if encoded == self._told.get(session, b""):
            return
        if encoded:
            self._told[session] = encoded
        else:
            self._told.pop(session, None)
        if segment is not None:
            segment.limit_quotas(limits)
