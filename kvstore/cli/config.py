"""`kvstore config`: what is set, whether a file is right, and what can be set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
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
from kvstore_client.config import CLIENT_OPTIONS, MASTERS_VARIABLE, environment_of_client
from kvstore_client.errors import ConfigError
from kvstore_client.options import Source

_CLIENT = "client"
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

    Those of `client` are what an engine that is started here gets, unless it is given others.
    """
    sections = [settings_class for settings_class in SECTIONS if section in ("", settings_class.section)]
    if not sections and section != _CLIENT:
        fail(f"no section {section}: there are {', '.join(each.section for each in SECTIONS)}, {_CLIENT}")
    try:
        rows = [row for settings_class in sections for row in _rows(settings_class, config)]
        if section in ("", _CLIENT):
            rows += _client_rows(os.environ)
    except ConfigurationError as error:
        fail(*error.faults)
    except ConfigError as error:
        fail(str(error))
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


def _client_rows(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """ConfigError for what the client would refuse."""
    source = environment_of_client(environ)
    yield _CLIENT + ".masters", environ.get(MASTERS_VARIABLE, "").strip(), _client_origin(source, "masters")
    for name, option in CLIENT_OPTIONS.items():
        value = source.value_of(option) if source.has(name) else option.default
        text = "(hidden)" if option.is_secret and value else show(value)
        yield f"{_CLIENT}.{name}", text, _client_origin(source, name)


def _client_origin(source: Source, name: str) -> str:
    return (
        source.origin(name).replace("environment variable", "environment") if source.has(name) else "default"
    )
