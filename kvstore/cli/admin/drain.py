"""`kvstore admin drain` and `undrain`: whether a segment takes new pages."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvstore.cli.admin.cluster import exchange
from kvstore.cli.admin.failures import AdminFailure
from kvstore.cli.admin.output import JsonOption, YesOption, confirm, counted, print_json, size
from kvstore.cli.admin.segments import list_segments
from kvstore.cli.admin.selection import describe_segment, select_segment
from kvstore.cli.admin.views import View, segment_view
from kvstore.cli.errors import fail
from kvstore.cli.settings_options import with_settings_options
from kvstore.common.config.admin import AdminSettings
from kvstore.v1 import admin_pb2 as pb

SegmentArgument = Annotated[
    str,
    typer.Argument(
        metavar="SEGMENT",
        help="Its index, its id or the beginning of that, or its host:port.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    app.command("drain")(with_settings_options(AdminSettings, drain))
    app.command("undrain")(with_settings_options(AdminSettings, undrain))


def drain(
    settings: AdminSettings, segment: SegmentArgument, yes: YesOption = False, json: JsonOption = False
) -> None:
    """Place no new pages on a segment; what it holds stays readable.

    Example:  kvstore admin drain 10.0.0.7:7450 --master master-0:7441

    It lasts over restarts of masters, until `undrain`, or until the segment says goodbye (SIGTERM). Not yet: its pages
    are not moved to other segments; when it stops they are misses.
    """
    found = _find_segment(settings, segment)
    confirm(f"Segment {describe_segment(found)} takes no new pages from then on.", yes)
    drained = _set_draining(settings, found, True)
    if json:
        print_json(_result(drained))
        return
    print(f"segment {describe_segment(drained)}: no new pages are placed on it")
    print(
        f"{counted(drained['object_count'], 'object')}, {size(drained['object_bytes'])} remain on it, readable. Not yet: "
        "pages are not moved off; it empties only as they are removed or cleared, and when it stops they are misses"
    )
    print(f"to call it off: kvstore admin undrain {drained['index']}")


def undrain(settings: AdminSettings, segment: SegmentArgument, json: JsonOption = False) -> None:
    """Call a drain off: the segment takes new pages again.

    Example:  kvstore admin undrain 10.0.0.7:7450 --master master-0:7441
    """
    restored = _set_draining(settings, _find_segment(settings, segment), False)
    if json:
        print_json(_result(restored))
    else:
        print(f"segment {describe_segment(restored)}: new pages are placed on it again")


def _find_segment(settings: AdminSettings, text: str) -> View:
    """The segment that is meant; exits when there is none, or several."""
    try:
        return select_segment(list_segments(settings), text)
    except AdminFailure as failure:
        fail(str(failure), code=failure.code)


def _set_draining(settings: AdminSettings, segment: View, draining: bool) -> View:
    """The segment as it is then. Durable on return; exits on failure."""
    request = pb.SetDrainingRequest(segment_id=bytes.fromhex(segment["segment_id"]), draining=draining)

    async def ask(call: Any) -> Any:
        return await call("SetDraining", request)

    return segment_view(exchange(settings, lambda cluster: cluster.change(ask)))


def _result(segment: View) -> View:
    """What `--json` prints."""
    return {
        "segment": segment,
        "pages_are_moved": False,
        "remaining_object_count": segment["object_count"],
        "remaining_object_bytes": segment["object_bytes"],
    }
