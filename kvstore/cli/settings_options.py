"""Makes a settings class into command line options: the fields are the one list of what can be set."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from kvstore.cli.errors import EXIT_USAGE, describe_invalid, fail

SettingsT = TypeVar("SettingsT", bound=BaseSettings)


def option_name(field_name: str) -> str:
    return "--" + field_name.replace("_", "-")


def load_settings(settings_class: type[SettingsT], given: dict[str, Any]) -> SettingsT:
    """Settings from the options that were given (None: not given), then the environment, then defaults.

    Exits on a fault.
    """
    try:
        return settings_class(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        fail(
            describe_invalid(error, {name: option_name(name) for name in settings_class.model_fields}),
            EXIT_USAGE,
        )


def with_settings_options(
    settings_class: type[SettingsT], command: Callable[..., None]
) -> Callable[..., None]:
    """`command(settings, **own)` as a function whose options are the fields of `settings_class` and its own
    parameters.

    Values stay text until pydantic reads them, so that an option, an environment variable and a test obey one
    rule.
    """
    fields = settings_class.model_fields
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    def call(**values: Any) -> None:
        settings = load_settings(settings_class, {name: values.pop(name) for name in fields})
        command(settings, **values)

    parameters = [_parameter(name, field, settings_class) for name, field in fields.items()]
    parameters += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    call.__name__ = command.__name__
    call.__doc__ = command.__doc__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _parameter(name: str, field: FieldInfo, settings_class: type[BaseSettings]) -> inspect.Parameter:
    prefix = settings_class.model_config.get("env_prefix", "")
    default = field.get_default(call_default_factory=True)
    help_text = f"{field.description or ''} [{prefix}{name.upper()}]".replace("[", r"\[")
    option: Any
    if field.annotation is bool:
        option = typer.Option(
            f"{option_name(name)}/--no-{option_name(name)[2:]}", help=help_text, show_default=str(default)
        )
        kind: Any = bool | None
    else:
        option = typer.Option(
            option_name(name), help=help_text, show_default=_show(default), metavar=_metavar(field)
        )
        kind = str | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def _show(default: Any) -> str | bool:
    if default is PydanticUndefined or isinstance(default, SecretStr) or default in (None, ""):
        return False
    return ",".join(map(str, default)) if isinstance(default, tuple | list) else str(default)


def _metavar(field: FieldInfo) -> str:
    if field.annotation is int:
        return "INTEGER"
    return "NUMBER" if field.annotation is float else "TEXT"
