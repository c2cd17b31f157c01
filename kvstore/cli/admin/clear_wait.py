"""`kvstore admin clear --wait`: asks the leader, again and again, who may still serve what was cleared."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from kvstore.cli.admin.cluster import Cluster, admin_token
from kvstore.cli.admin.failures import EXIT_UNREACHABLE, AdminFailure
from kvstore.cli.admin.output import counted, printable
from kvstore.common.config.admin import AdminSettings
from kvstore.v1 import admin_pb2 as pb

POLL_S = 0.25
NAMED_MAX = 5


def wait_confirmed(settings: AdminSettings, ns: bytes, wait_s: float) -> list[str]:
    """Who has not confirmed after `wait_s`, a line each; none: nobody serves the namespace's id `ns` any more. Progress goes to
    stderr. Raises AdminFailure where asking is of no use."""
    return asyncio.run(_wait_confirmed(settings, ns, wait_s))


async def _wait_confirmed(settings: AdminSettings, ns: bytes, wait_s: float) -> list[str]:
    ends_at = time.monotonic() + wait_s
    told: list[str] = []
    while True:
        try:
            waited_for = await _ask(settings, ns)
            if not waited_for:
                return []
            names = [f"{what} {address}" for what, address, _ in waited_for]
            lines = [printable(f"{what} {address}: {why}") for what, address, why in waited_for]
        except AdminFailure as failure:
            if failure.code != EXIT_UNREACHABLE:
                raise
            names = lines = [f"no answer from a master that leads: {failure}"]
        if names != told:
            told = names
            more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
            print(f"waiting for {', '.join(names[:NAMED_MAX])}{more}", file=sys.stderr, flush=True)
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            return lines
        await asyncio.sleep(min(POLL_S, left_s))


async def _ask(settings: AdminSettings, ns: bytes) -> list[tuple[str, str, str]]:
    async def ask(call: Any) -> Any:
        return await call("GetClearProgress", pb.GetClearProgressRequest(id=ns))

    async with Cluster(settings.master, admin_token(settings), settings.timeout_ms) as cluster:
        progress = await cluster.change(ask)
    return [
        *(("segment", each.address, each.why) for each in progress.segments),
        *(("master", each.address, each.why) for each in progress.masters),
    ]


def unconfirmed_text(ns: bytes, lines: list[str], wait_s: float) -> list[str]:
    """For the operator, when the bound is over."""
    return [
        f"it is cleared, and after {wait_s:g} s {counted(len(lines), 'server')} may still serve it:",
        *lines,
        "a segment confirms when it attaches, or is gone from the map after the masters' grace_s; a master that is cut off or "
        "dead stops to count after standby_reads_s, or when it is started again. "
        f"To wait on: kvstore admin clear {ns.hex()} --wait --yes",
    ]
