"""`kvstore admin segments`: every segment, and how it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from kvstore.cli.admin.cluster import exchange, listed
from kvstore.cli.admin.output import UNKNOWN, JsonOption, count, duration, print_json, print_table, size
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
    "DISK>",
    "OBJECTS>",
    "PINNED>",
    "QUARANTINED>",
    "MISMATCHES>",
    "EVICTED>",
    "LIMITS",
    "HEARD>",
    "VERSION",
)


def register(app: typer.Typer) -> None:
    app.command("segments")(with_settings_options(AdminSettings, segments))


_LIMIT_COLUMNS = ("INDEX>", "ID", "LIMIT", "USED>", "MAX>", "REFUSED>")
LimitsOption = Annotated[
    bool,
    typer.Option("--limits", help="Print what each segment limits, how much of it is used, and refusals."),
]
# From here on a limit is named though nothing was refused for it.
NEAR = 0.9


def segments(settings: AdminSettings, json: JsonOption = False, limits: LimitsOption = False) -> None:
    """List the segments: where they are, what they hold, whether they are well.

    Example:  kvstore admin segments --master master-0:7441

    An ADDRESS with (from ...) is one that clients can't reach: see `kvstore admin status`. QUARANTINED or MISMATCHES that grow on one segment alone mean bad memory, or a bad network card, on its node. DISK is what pages take of a disk tier, and its size. LIMITS names those of what peers can have that are nearly used up, or for which something was refused; --limits shows all of them.
    """
    views = sorted(list_segments(settings), key=lambda view: view["index"])
    if json:
        print_json({"segments": views})
    elif limits:
        print_table(_LIMIT_COLUMNS, (row for view in views for row in _limit_rows(view)))
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
        shown_disk(view),
        count(view["object_count"]),
        size(view["pinned_bytes"]),
        count(view["quarantined_slots"]),
        count(view["digest_mismatches"]),
        count(view["evicted_objects"]),
        shown_limits(view),
        duration(view["heard_ms"]),
        view["version"] or "-",
    )


def shown_disk(view: View) -> str:
    """How much of its disk tier a segment uses; "-" where it has none, or does not say."""
    for each in view["limits"]:
        if each["name"] == "disk_bytes" and each["limit"]:
            return f"{size(each['used'])} of {size(each['limit'])}"
    return UNKNOWN


def shown_limits(view: View) -> str:
    """The limits that are of interest, in words."""
    said = []
    for each in view["limits"]:
        if each["name"] == "ungreeted":  # strangers are no news
            continue
        if each["refused"]:
            said.append(f"{each['name']} (refused {each['refused']})")
        elif each["name"] != "disk_bytes" and each["limit"] and each["used"] >= NEAR * each["limit"]:
            said.append(f"{each['name']} ({100 * each['used'] // each['limit']} %)")
    return ", ".join(said) or ("ok" if view["limits"] else UNKNOWN)


def _limit_rows(view: View) -> Iterator[tuple[str, ...]]:
    for each in view["limits"]:
        shown = size if each["name"].endswith("_bytes") else count
        yield (
            str(view["index"]),
            view["segment_id"],
            each["name"],
            shown(each["used"]),
            shown(each["limit"]),
            count(each["refused"]),
        )


def shown_state(view: View) -> str:
    """The state, with what it hides."""
    state: str = view["state"]
    if state == "suspect" and view["draining"]:
        return "suspect, draining"
    if state in ("live", "draining") and view["attached"] is False:
        return f"{state}, not attached"
    if (drain := view.get("drain")) is not None:
        left = "" if drain["phase"] == "drained" else f", {size(drain['remaining_bytes'])} left"
        return f"{state}, {drain['phase']}{left}"
    return state
