"""Makes a settings class into command line options: the declarations are the one list of what can be set."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import typer

from kvstore.cli.errors import EXIT_USAGE, fail
from kvstore.common.config.environment import CONFIG_VARIABLE
from kvstore.common.config.load import ConfigurationError, Loaded, load
from kvstore.common.config.schema import Declaration, Settings, declarations
from kvstore.common.config.servers import ServerSettings
from kvstore.common.logs import configure_logging, log_event

logger = logging.getLogger(__name__)

SettingsT = TypeVar("SettingsT", bound=Settings)

ConfigOption = Annotated[
    str,
    typer.Option(
        "--config",
        metavar="FILE",
        help=f"YAML file with settings; what the environment and the options say comes before it. [env: {CONFIG_VARIABLE}]".replace(
            "[", r"\["
        ),
        show_default=False,
    ),
]


def load_or_fail(
    settings_class: type[SettingsT], options: Mapping[str, str | None], config: str
) -> Loaded[SettingsT]:
    """Exits with a line for each fault."""
    try:
        return load(settings_class, options, config)
    except ConfigurationError as error:
        fail(*error.faults, code=EXIT_USAGE)


def with_settings_options(
    settings_class: type[SettingsT], command: Callable[..., None]
) -> Callable[..., None]:
    """`command(settings, **own)` as a function whose options are the settings, `--config` and its own parameters.

    A server's logging is set up before it is called. A command that has a parameter `config` gets the path.
    Values stay text until the settings class reads them, so that an option, an environment variable and a line of the
    file obey one rule.
    """
    declared = list(declarations(settings_class))
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    wants_config = any(parameter.name == "config" for parameter in own)

    def call(config: str = "", **values: Any) -> None:
        given = {declaration.name: _text(values.pop(declaration.name)) for declaration in declared}
        loaded = load_or_fail(settings_class, given, config)
        if isinstance(loaded.settings, ServerSettings):
            configure_logging(loaded.settings.log_level, loaded.settings.log_format)
        if loaded.service_links:
            log_event(logger, logging.DEBUG, "service_links_ignored", variables=loaded.service_links)
        command(loaded.settings, **values, **({"config": config} if wants_config else {}))

    parameters = [_parameter(declaration) for declaration in declared]
    if not wants_config:
        parameters.append(
            inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default="", annotation=ConfigOption)
        )
    parameters += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    call.__name__ = command.__name__
    call.__doc__ = command.__doc__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _text(value: str | bool | None) -> str | None:
    return str(value) if isinstance(value, bool) else value


def _parameter(declaration: Declaration) -> inspect.Parameter:
    facts = (
        declaration.bounds,
        f"default: {declaration.default}" if declaration.default else "",
        f"env: {', '.join(declaration.variables)}",
    )
    text = " ".join([declaration.description, *(f"[{fact}]" for fact in facts if fact)])
    look: dict[str, Any] = {
        "help": text.replace("[", r"\["),
        "show_default": False,
        "rich_help_panel": declaration.group,
    }
    kind: Any
    if declaration.is_switch:
        option = typer.Option(f"{declaration.option}/--no-{declaration.option[2:]}", **look)
        kind = bool | None
    else:
        metavar = declaration.kind if declaration.choices else declaration.kind.upper()
        option = typer.Option(declaration.option, metavar=metavar, **look)
        kind = str | None
    return inspect.Parameter(
        declaration.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )
