"""`kvstore admin drain` and `undrain`: empties a segment, or has it take pages again."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvstore.cli.admin.cluster import exchange
from kvstore.cli.admin.drain_wait import wait_drained
from kvstore.cli.admin.failures import EXIT_UNCONFIRMED, AdminFailure
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
    settings: AdminSettings,
    segment: SegmentArgument,
    yes: YesOption = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return only when other segments have all of its pages.")
    ] = False,
    wait_s: Annotated[
        float, typer.Option("--wait-s", help="How long --wait waits at most.", min=0.1, max=7 * 86_400)
    ] = 3600.0,
    json: JsonOption = False,
) -> None:
    """Empty a segment: no new pages are placed on it, and those that it has are copied to others.

    Example:  kvstore admin drain 10.0.0.7:7450 --wait --master master-0:7441

    What it holds stays readable there until it is stopped, which costs nothing once it is drained. Where there is not room for all the
    hottest pages go first. It lasts over restarts of masters, until `undrain`, or until the segment says goodbye (SIGTERM). Exit code
    4: it drains, and is not drained after --wait-s or for want of room.
    """
    found = _find_segment(settings, segment)
    confirm(f"Segment {describe_segment(found)} takes no new pages from then on.", yes)
    drained = _set_draining(settings, found, True)
    if wait:
        drained = _waited(settings, drained, wait_s)
    is_drained = drained["drain"] is not None and drained["drain"]["phase"] == "drained"
    if json:
        print_json(_result(drained))
    elif is_drained:
        print(f"segment {describe_segment(drained)} is drained: it can be stopped, and no page is lost")
    else:
        print(
            f"segment {describe_segment(drained)}: no new pages are placed on it, and others copy what it has"
        )
        print(
            f"{counted(drained['object_count'], 'object')}, {size(drained['object_bytes'])} are on it, readable. To see how far it "
            f"is: kvstore admin drain {drained['index']} --wait --yes"
        )
        print(f"to call it off: kvstore admin undrain {drained['index']}")
    if wait and not is_drained:
        left = drained["drain"] or {"remaining_objects": drained["object_count"], "phase": "waiting"}
        fail(
            f"not drained: {counted(left['remaining_objects'], 'object')} on no other segment ({left['phase']}). When it stops "
            "they are misses. For room add a segment, or a larger --capacity on another; it goes on by itself",
            code=EXIT_UNCONFIRMED,
        )


def _waited(settings: AdminSettings, segment: View, wait_s: float) -> View:
    try:
        seen = wait_drained(settings, segment["segment_id"], wait_s)
    except AdminFailure as failure:
        fail(f"it drains, but how far it is can't be asked: {failure}", code=failure.code)
    if seen is None:
        fail("the segment has left the cluster meanwhile: what no other segment had is gone")
    if seen["draining"] is False:
        fail("the drain has been called off meanwhile")
    return seen


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
        "pages_are_moved": True,
        "remaining_object_count": segment["object_count"],
        "remaining_object_bytes": segment["object_bytes"],
    }
