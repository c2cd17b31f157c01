"""`kvstore admin drain`: no new pages for a segment."""

from __future__ import annotations

import typer

from kvstore.cli.admin.draining import SegmentArgument, find_segment, result, set_draining
from kvstore.cli.admin.output import JsonOption, YesOption, confirm, counted, print_json, size
from kvstore.cli.admin.selection import describe_segment
from kvstore.cli.admin.settings import AdminSettings
from kvstore.cli.settings_options import with_settings_options


def register(app: typer.Typer) -> None:
    app.command("drain")(with_settings_options(AdminSettings, drain))


def drain(
    settings: AdminSettings, segment: SegmentArgument, yes: YesOption = False, json: JsonOption = False
) -> None:
    """Place no new pages on a segment; what it holds stays readable.

    Example:  kvstore admin drain 10.0.0.7:7450 --master master-0:7441

    It lasts over restarts of masters, until `undrain`, or until the segment says goodbye (SIGTERM). Not yet: its pages
    are not moved to other segments; when it stops they are misses.
    """
    found = find_segment(settings, segment)
    confirm(f"Segment {describe_segment(found)} takes no new pages from then on.", yes)
    drained = set_draining(settings, found, True)
    if json:
        print_json(result(drained))
        return
    print(f"segment {describe_segment(drained)}: no new pages are placed on it")
    print(
        f"{counted(drained['object_count'], 'object')}, {size(drained['object_bytes'])} remain on it, readable. Not yet: "
        "pages are not moved off; it empties only as they are removed or cleared, and when it stops they are misses"
    )
    print(f"to call it off: kvstore admin undrain {drained['index']}")
