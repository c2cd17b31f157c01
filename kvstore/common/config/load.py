"""Puts a command's settings together: defaults < configuration file < environment < options.

Whatever is empty counts as not given, in all of them. Each fault names where the value came from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from kvstore.common.config import SECTIONS
from kvstore.common.config.environment import CONFIG_VARIABLE, OTHER_VARIABLES, PREFIX, unknown_variables
from kvstore.common.config.file import ConfigFile, Given, read_config_file
from kvstore.common.config.schema import Settings, declarations
from kvstore_client.service_links import is_service_link
from kvstore_client.tokens import read_secret

SettingsT = TypeVar("SettingsT", bound=Settings)


class ConfigurationError(Exception):
    """`faults`: everything that is wrong, each a line that names the source and the remedy."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


@dataclass(frozen=True)
class Loaded(Generic[SettingsT]):
    """`origins`: where each setting that was given came from. `service_links`: variables that were passed over."""

    settings: SettingsT
    origins: dict[str, str]
    service_links: list[str]


def load(
    settings_class: type[SettingsT],
    options: Mapping[str, str | None],
    config_path: str = "",
    environ: Mapping[str, str] = os.environ,
) -> Loaded[SettingsT]:
    """ConfigurationError with all faults. `options`: what was given of them, as text, by the setting's name."""
    path = config_path or environ.get(CONFIG_VARIABLE, "").strip()
    file = read_config_file(Path(path), known_names()) if path else ConfigFile()
    faults = [*file.faults, *unknown_variables(environ, known_variables())]
    shared, own = _from_environment(settings_class, environ)
    from_options = {
        declaration.name: Given(text, declaration.option)
        for declaration in declarations(settings_class)
        if (text := options.get(declaration.name) or "").strip()
    }
    given: dict[str, Given] = {}
    for layer in (file.sections.get(settings_class.section, {}), shared, own, from_options):
        # Of a secret and its file the stronger source counts.
        for name, rival in (("token", "token_file"), ("token_file", "token")):
            if name in layer:
                given.pop(rival, None)
        given.update(layer)
    settings = _build(settings_class, given, faults)
    if faults or settings is None:
        raise ConfigurationError(faults)
    links = [
        name for name, value in environ.items() if name.startswith(PREFIX) and is_service_link(name, value)
    ]
    return Loaded(settings, {name: value.origin for name, value in given.items()}, sorted(links))


def check_file(path: Path) -> tuple[list[str], int]:
    """(everything that is wrong with a configuration file, how many settings it has)."""
    file = read_config_file(path, known_names())
    faults = file.faults
    for settings_class in SECTIONS:
        given = file.sections.get(settings_class.section, {})
        if given:
            _build(settings_class, given, faults, given)
    faults.sort(key=_line)
    return faults, sum(map(len, file.sections.values()))


def _line(fault: str) -> int:
    found = re.match(r"[^:]*:([0-9]+):", fault)
    return int(found[1]) if found else 0


def _from_environment(
    settings_class: type[Settings], environ: Mapping[str, str]
) -> tuple[dict[str, Given], dict[str, Given]]:
    """(from variables that several commands read, from this one's own)."""
    shared: dict[str, Given] = {}
    own: dict[str, Given] = {}
    for declaration in declarations(settings_class):
        for variable in declaration.variables:
            text = environ.get(variable, "")
            if text.strip() and not is_service_link(variable, text):
                layer = own if variable == declaration.variable else shared
                layer.setdefault(declaration.name, Given(text, f"environment {variable}"))
    if "token_file" in shared:
        shared.pop("token", None)
    return shared, own


def _build(
    settings_class: type[SettingsT],
    given: Mapping[str, Given],
    faults: list[str],
    only: Collection[str] | None = None,
) -> SettingsT | None:
    """None after adding to `faults`. `only`: the settings whose faults count."""
    values = {name: value.text for name, value in given.items()}
    origins = {name: value.origin for name, value in given.items()}
    if "token_file" in given and "token" in settings_class.model_fields:
        if "token" in given:
            faults.append(f"{origins['token']} and {origins['token_file']} are both given: keep one")
            return None
        origins["token"] = origins["token_file"]
        try:
            values["token"] = read_secret(values["token_file"])
        except ValueError as error:
            faults.append(f"{origins['token_file']}: {error}")
            return None
    try:
        return settings_class(**values)
    except ValidationError as error:
        options = {declaration.name: declaration.option for declaration in declarations(settings_class)}
        for fault in error.errors():
            name = str(fault["loc"][0]) if fault["loc"] else ""
            if not name:
                faults.append(_between_settings(fault, settings_class.section, origins))
            elif only is None or name in only:
                faults.append(f"{origins.get(name, options.get(name, name))}: {_describe(name, fault)}")
        return None


def _describe(name: str, fault: ErrorDetails) -> str:
    if fault["type"] == "value_error":
        return fault["msg"].removeprefix("Value error, ")
    text = fault["msg"][0].lower() + fault["msg"][1:]
    return text if name == "token" else f"{text}, not {fault['input']!r}"


def _between_settings(fault: ErrorDetails, section: str, origins: Mapping[str, str]) -> str:
    text = fault["msg"].removeprefix("Value error, ")
    involved = [origins[name] for name in dict.fromkeys(re.findall(r"\w+", text)) if name in origins]
    return f"{section}: {text}" + (f" ({'; '.join(involved)})" if involved else "")


def known_names() -> dict[str, list[str]]:
    return {settings_class.section: list(settings_class.model_fields) for settings_class in SECTIONS}


def known_variables() -> set[str]:
    """Every variable that something of the product reads."""
    variables = set(OTHER_VARIABLES)
    for settings_class in SECTIONS:
        for declaration in declarations(settings_class):
            variables.update(declaration.variables)
    return variables
