"""Whose a segment's id is, where two have it because a data directory was copied."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kvstore.master.state.endpoint import Endpoint
from kvstore.master.state.membership import MembershipLimits

if TYPE_CHECKING:
    from simulation.oracle import Oracle

KEPT_S = MembershipLimits().streamless_timeout_s
# What a clock's rounding may take of it.
ROUNDING_S = 1e-6


class SegmentIds:
    """Told by masters, in their processes: times are by the clock of the one that tells."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._heard_at: dict[tuple[str, bytes], float] = {}  # (master, memory)
        self._leads_since: dict[str, float] = {}

    def leads(self, master: str) -> None:
        self._leads_since[master] = time.monotonic()

    def heard(self, master: str, pool_id: bytes) -> None:
        """A sign of life of this memory."""
        self._heard_at[master, pool_id] = time.monotonic()

    def taken(self, master: str, holder: Endpoint, newcomer: Endpoint) -> None:
        """`newcomer` has the id now: on another host that is right only when nothing was heard of `holder` for long enough."""
        if holder.host == newcomer.host:
            return
        counts_from = max(
            self._heard_at.get((master, holder.pool_id), float("-inf")), self._leads_since[master]
        )
        silent_s = time.monotonic() - counts_from
        if silent_s < KEPT_S - ROUNDING_S:
            self._oracle.violate(
                "a segment keeps its id",
                f"{master} gives that of {holder.host} to {newcomer.host} after {silent_s:.3f} s",
            )
        for node in self._oracle.cluster.segments.values():
            if node.pool.pool_id == holder.pool_id:
                node.pool.supplanted()
