"""`kvstore admin drain --wait`: asks the leader, again and again, how far the moving of a segment's pages is, and shows it."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from kvstore.cli.admin.cluster import Cluster, admin_token
from kvstore.cli.admin.failures import EXIT_UNREACHABLE, AdminFailure
from kvstore.cli.admin.output import counted, printable, size
from kvstore.cli.admin.views import View, segment_view
from kvstore.common.config.admin import AdminSettings
from kvstore.v1 import admin_pb2 as pb

POLL_S = 0.25
BAR_CHARACTERS = 30
LINE_STEP = 0.1
"""Where there is no terminal, a line is printed each time that so much more has been moved."""
# A master that has just begun to lead, or a segment that comes back, needs so long to know better.
NO_ROOM_S = 15.0


def wait_drained(settings: AdminSettings, segment_id: str, wait_s: float) -> View | None:
    """The segment as it was last seen: drained, out of room for a while, or after `wait_s`; None: it has left. Progress goes to
    stderr. Raises AdminFailure where asking is of no use."""
    return asyncio.run(_wait_drained(settings, segment_id, wait_s))


async def _wait_drained(settings: AdminSettings, segment_id: str, wait_s: float) -> View | None:
    ends_at = time.monotonic() + wait_s
    shown = _Shown()
    stuck_since: float | None = None
    view: View | None = None
    try:
        while True:
            try:
                view = await _ask(settings, segment_id)
                if view is None or (view["drain"] is None and not view["draining"]):
                    return view
                if view["drain"] is not None:
                    shown.show(view["drain"])
                    if view["drain"]["phase"] == "drained":
                        return view
            except AdminFailure as failure:
                if failure.code != EXIT_UNREACHABLE:
                    raise
                shown.say(f"no answer from a master that leads: {failure}")
            now = time.monotonic()
            if (
                view is None
                or view["drain"] is None
                or view["drain"]["phase"] not in ("no room", "no target")
            ):
                stuck_since = None
            elif stuck_since is None:
                stuck_since = now
            elif now - stuck_since >= NO_ROOM_S:
                return view
            if now >= ends_at:
                return view
            await asyncio.sleep(min(POLL_S, ends_at - now))
    finally:
        shown.end()


async def _ask(settings: AdminSettings, segment_id: str) -> View | None:
    """As the leader sees it: nobody else knows of the progress."""

    async def ask(call: Any) -> list[Any]:
        return [each async for each in call("ListSegments", pb.ListSegmentsRequest())]

    async with Cluster(settings.master, admin_token(settings), settings.timeout_ms) as cluster:
        views = map(segment_view, await cluster.change(ask))
        return next((view for view in views if view["segment_id"] == segment_id), None)


class _Shown:
    """A bar on a terminal, now and then a line elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._drawn = False
        self._told: tuple[str, int] | None = None
        self._said = ""

    def show(self, drain: View) -> None:
        whole = drain["moved_bytes"] + drain["remaining_bytes"]
        share = 1.0 if drain["phase"] == "drained" or whole == 0 else drain["moved_bytes"] / whole
        text = progress_text(drain, share)
        if self._is_terminal:
            filled = int(share * BAR_CHARACTERS)
            bar = "#" * filled + "-" * (BAR_CHARACTERS - filled)
            print(f"\r\033[K[{bar}] {text}", end="", file=sys.stderr, flush=True)
            self._drawn = True
            return
        told = drain["phase"], int(share / LINE_STEP)
        if told != self._told:
            self._told = told
            print(text, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self.end()
            print(printable(text), file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._drawn:
            print(file=sys.stderr, flush=True)
            self._drawn = False


def progress_text(drain: View, share: float) -> str:
    moved = f"{counted(drain['moved_objects'], 'object')}, {size(drain['moved_bytes'])} moved"
    left = f"{counted(drain['remaining_objects'], 'object')}, {size(drain['remaining_bytes'])} left"
    trouble = f" ({printable(drain['trouble'])})" if drain["trouble"] else ""
    return f"{100 * share:.0f} %, {drain['phase']}: {moved}, {left}{trouble}"
