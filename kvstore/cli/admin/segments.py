"""`kvstore admin segments`: every segment, and how it is."""

from __future__ import annotations

import typer

from kvstore.cli.admin.cluster import exchange, listed
from kvstore.cli.admin.output import JsonOption, count, duration, print_json, print_table, size
from kvstore.cli.admin.views import View, segment_view
from kvstore.cli.settings_options import with_settings_options
from kvstore.common.config.admin import AdminSettings
from kvstore.v1 import admin_pb2 as pb

_COLUMNS = (
    "INDEX>",
    "ID",
    "ADDRESS",
    "STATE",
    "USED>",
    "CAPACITY>",
    "OBJECTS>",
    "PINNED>",
    "QUARANTINED>",
    "MISMATCHES>",
    "EVICTED>",
    "HEARD>",
    "VERSION",
)


def register(app: typer.Typer) -> None:
    app.command("segments")(with_settings_options(AdminSettings, segments))


def segments(settings: AdminSettings, json: JsonOption = False) -> None:
    """List the segments: where they are, what they hold, whether they are well.

    Example:  kvstore admin segments --master master-0:7441

    An ADDRESS with (from ...) is one that clients can't reach: see `kvstore admin status`. QUARANTINED or MISMATCHES that grow on one segment alone mean bad memory, or a bad network card, on its node.
    """
    views = sorted(list_segments(settings), key=lambda view: view["index"])
    if json:
        print_json({"segments": views})
    else:
        print_table(_COLUMNS, map(_row, views))


def list_segments(settings: AdminSettings) -> list[View]:
    found = exchange(settings, lambda cluster: listed(cluster, "ListSegments", pb.ListSegmentsRequest()))
    return [segment_view(segment) for segment in found]


def _row(view: View) -> tuple[str, ...]:
    return (
        str(view["index"]),
        view["segment_id"],
        f"{view['address']} (from {view['attached_from']})" if view["address_doubt"] else view["address"],
        shown_state(view),
        size(view["used_bytes"]),
        size(view["capacity_bytes"]),
        count(view["object_count"]),
        size(view["pinned_bytes"]),
        count(view["quarantined_slots"]),
        count(view["digest_mismatches"]),
        count(view["evicted_objects"]),
        duration(view["heard_ms"]),
        view["version"] or "-",
    )


def shown_state(view: View) -> str:
    """The state, with what it hides."""
    state: str = view["state"]
    if state == "suspect" and view["draining"]:
        return "suspect, draining"
    if state in ("live", "draining") and view["attached"] is False:
        return f"{state}, not attached"
    return state
