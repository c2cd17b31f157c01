"""`kvstore admin undrain`: a segment takes new pages again."""

from __future__ import annotations

import typer

from kvstore.cli.admin.draining import SegmentArgument, find_segment, result, set_draining
from kvstore.cli.admin.output import JsonOption, print_json
from kvstore.cli.admin.selection import describe_segment
from kvstore.cli.admin.settings import AdminSettings
from kvstore.cli.settings_options import with_settings_options


def register(app: typer.Typer) -> None:
    app.command("undrain")(with_settings_options(AdminSettings, undrain))


def undrain(settings: AdminSettings, segment: SegmentArgument, json: JsonOption = False) -> None:
    """Call a drain off: the segment takes new pages again.

    Example:  kvstore admin undrain 10.0.0.7:7450 --master master-0:7441
    """
    restored = set_draining(settings, find_segment(settings, segment), False)
    if json:
        print_json(result(restored))
    else:
        print(f"segment {describe_segment(restored)}: new pages are placed on it again")
