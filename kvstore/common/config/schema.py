"""How a setting is declared, and what a declaration says of itself."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

_UNITS = {"_ms": "milliseconds", "_s": "seconds", "_bytes": "bytes"}
_KINDS = {int: "integer", float: "number", bool: "yes or no", SecretStr: "secret", Path: "path"}
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


class Settings(BaseModel):
    """The settings of one command: a section of the configuration file. Unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    section: ClassVar[str]


def setting(
    default: Any,
    description: str,
    *,
    group: str = "General",
    kind: str = "",
    shown_default: str = "",
    also: tuple[str, ...] = (),
    **bounds: Any,
) -> Any:
    """A field of a Settings class.

    `kind`: what its text is, where the type doesn't say. `shown_default`: for a default that depends on the machine.
    `also`: environment variables that are read where the setting's own is not set. `bounds`: as pydantic's Field.
    """
    extra: JsonDict = {"group": group, "kind": kind, "shown_default": shown_default, "also": list(also)}
    return Field(default, description=description, json_schema_extra=extra, **bounds)


@dataclass(frozen=True)
class Declaration:
    """One setting, as people are told of it."""

    section: str
    name: str
    field: FieldInfo

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return f"KVSTORE_{self.section}_{self.name}".upper()

    @property
    def variables(self) -> tuple[str, ...]:
        """In the order in which they are asked."""
        return (self.variable, *self._extra("also"))

    @property
    def group(self) -> str:
        return str(self._extra("group"))

    @property
    def description(self) -> str:
        return self.field.description or ""

    @property
    def is_secret(self) -> bool:
        return self.field.annotation is SecretStr

    @property
    def is_switch(self) -> bool:
        return self.field.annotation is bool

    @property
    def kind(self) -> str:
        """What its value is: 'integer', 'seconds', 'off|auto|required', ..."""
        if self._extra("kind"):
            return str(self._extra("kind"))
        for suffix, unit in _UNITS.items():
            if self.name.endswith(suffix):
                return unit
        annotation: Any = self.field.annotation
        return "|".join(self.choices) or _KINDS.get(annotation, "text")

    @property
    def bounds(self) -> str:
        """'1 to 65535', 'at least 1' or empty."""
        found = {
            name: f"{getattr(constraint, name):g}"
            if isinstance(getattr(constraint, name), float)
            else str(getattr(constraint, name))
            for constraint in self.field.metadata
            for name in _BOUNDS
            if hasattr(constraint, name)
        }
        if found.keys() == {"ge", "le"}:
            return f"{found['ge']} to {found['le']}"
        return ", ".join(f"{_BOUNDS[name]} {bound}" for name, bound in found.items())

    @property
    def choices(self) -> tuple[str, ...]:
        """Of one that is none of them: ()."""
        annotation: Any = self.field.annotation
        return get_args(annotation) if get_origin(annotation) is Literal else ()

    @property
    def default(self) -> str:
        """Empty where there is none to show."""
        if self._extra("shown_default"):
            return str(self._extra("shown_default"))
        return "" if self.is_secret else show(self.field.default)

    def _extra(self, name: str) -> Any:
        extra = self.field.json_schema_extra
        assert isinstance(extra, dict), f"{self.section}.{self.name}: declare it with setting()"
        return extra[name]


def declarations(settings_class: type[Settings]) -> Iterator[Declaration]:
    for name, field in settings_class.model_fields.items():
        yield Declaration(settings_class.section, name, field)


def show(value: Any) -> str:
    """A value as it would be written into a file."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, SecretStr):
        return "(hidden)" if value.get_secret_value() else ""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def state_directory(name: str) -> Path:
    """Where `name` keeps its state unless told otherwise: in `$XDG_STATE_HOME/kvstore` or `~/.local/state/kvstore`.

    ValueError where nobody knows a home directory: in many containers a user has none.
    """
    state_home = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(state_home):
        return Path(state_home) / "kvstore" / name
    home = os.environ.get("HOME", "")
    if not home:
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            raise ValueError(
                f"there is no home directory to keep it in (HOME is not set, user {os.getuid()} has no passwd entry): "
                "say where"
            ) from None
    return Path(home) / ".local" / "state" / "kvstore" / name


def shown_state_directory(name: str) -> str:
    return f"~/.local/state/kvstore/{name}".rstrip("/")
