"""What `drain` and `undrain` have in common."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvstore.cli.admin.cluster import exchange
from kvstore.cli.admin.failures import AdminFailure
from kvstore.cli.admin.segments import list_segments
from kvstore.cli.admin.selection import select_segment
from kvstore.cli.admin.settings import AdminSettings
from kvstore.cli.admin.views import View, segment_view
from kvstore.cli.errors import fail
from kvstore.v1 import admin_pb2 as pb

SegmentArgument = Annotated[
    str,
    typer.Argument(
        metavar="SEGMENT",
        help="Its index, its id or the beginning of that, or its host:port.",
        show_default=False,
    ),
]


def find_segment(settings: AdminSettings, text: str) -> View:
    """The segment that is meant; exits when there is none, or several."""
    try:
        return select_segment(list_segments(settings), text)
    except AdminFailure as failure:
        fail(str(failure), failure.code)


def set_draining(settings: AdminSettings, segment: View, draining: bool) -> View:
    """The segment as it is then. Durable on return; exits on failure."""
    request = pb.SetDrainingRequest(segment_id=bytes.fromhex(segment["segment_id"]), draining=draining)

    async def ask(call: Any) -> Any:
        return await call("SetDraining", request)

    return segment_view(exchange(settings, lambda cluster: cluster.change(ask)))


def result(segment: View) -> View:
    """What `--json` prints."""
    return {
        "segment": segment,
        "pages_are_moved": False,
        "remaining_object_count": segment["object_count"],
        "remaining_object_bytes": segment["object_bytes"],
    }
