"""`kvstore config`: what is set, whether a file is right, and what can be set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from kvstore.cli.admin.output import JsonOption, print_json, print_table
from kvstore.cli.errors import fail
from kvstore.cli.settings_options import ConfigOption
from kvstore.common.config import SECTIONS
from kvstore.common.config.load import ConfigurationError, check_file, load
from kvstore.common.config.reference import reference
from kvstore.common.config.schema import Settings, declarations, show

HELP = """Show, check and document the settings of all commands.

Example:  kvstore config check /etc/kvstore.yaml
"""


def register(app: typer.Typer) -> None:
    config = typer.Typer(name="config", help=HELP, no_args_is_help=True, rich_markup_mode="rich")
    config.command("show")(show_settings)
    config.command("check")(check)
    config.command("docs")(docs)
    app.add_typer(config)


def show_settings(
    section: Annotated[
        str, typer.Argument(help="Only this section.", metavar="[SECTION]", show_default=False)
    ] = "",
    config: ConfigOption = "",
    json: JsonOption = False,
) -> None:
    """Print the settings in force here, and where each came from: default, file, or environment. Secrets are hidden.

    Example:  kvstore config show segment --config /etc/kvstore.yaml
    """
    sections = [settings_class for settings_class in SECTIONS if section in ("", settings_class.section)]
    if not sections:
        fail(f"no section {section}: there are {', '.join(each.section for each in SECTIONS)}")
    try:
        rows = [row for settings_class in sections for row in _rows(settings_class, config)]
    except ConfigurationError as error:
        fail(*error.faults)
    if json:
        views: dict[str, Any] = {}
        for name, value, origin in rows:
            views[name] = {"value": value, "origin": origin}
        print_json(views)
    else:
        print_table(("SETTING", "VALUE", "FROM"), rows)


def check(
    file: Annotated[Path, typer.Argument(help="The configuration file.", show_default=False)],
) -> None:
    """Find everything that is wrong with a configuration file. Exit code 1 when something is.

    Example:  kvstore config check /etc/kvstore.yaml
    """
    faults, count = check_file(file)
    if faults:
        fail(*faults)
    print(f"{file}: ok, {count} settings")


def docs() -> None:
    """Print docs/configuration.md: every setting of every command, with its default and bounds.

    Example:  kvstore config docs | less
    """
    print(reference(), end="")


def _rows(settings_class: type[Settings], config: str) -> Iterator[tuple[str, str, str]]:
    loaded = load(settings_class, {}, config)
    for declaration in declarations(settings_class):
        name = f"{settings_class.section}.{declaration.name}"
        value = show(getattr(loaded.settings, declaration.name))
        yield name, value, loaded.origins.get(declaration.name, "default")
