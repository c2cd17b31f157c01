"""Options that are declared once: name, type, default, bounds, unit and meaning. Arguments, the environment, an
engine's configuration and the documentation all go by the declaration.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from kvstore_client.errors import ConfigError
from kvstore_client.service_links import is_service_link
from kvstore_client.suggestions import did_you_mean

ENVIRONMENT_PREFIX = "KVSTORE_CLIENT_"

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@dataclass(frozen=True)
class Option:
    """One option. `check` takes a value of the option's own type, `read` a text."""

    name: str
    meaning: str
    default: Any
    unit: str = ""
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    bytes_max: int = 0
    variable: str = ""
    """Environment variable, where it is not KVSTORE_CLIENT_<NAME>."""
    is_secret: bool = False

    @property
    def bounds(self) -> str:
        """What is accepted, for people; empty for true or false."""
        if self.choices:
            return ", ".join(self.choices)
        if isinstance(self.default, bool):
            return ""
        if isinstance(self.default, int):
            return f"{self.low}..{self.high}" + (f" {self.unit}" if self.unit else "")
        return f"at most {self.bytes_max} bytes"

    @property
    def environment(self) -> str:
        """Name of the environment variable."""
        return self.variable or ENVIRONMENT_PREFIX + self.name.upper()

    def check(self, value: Any, origin: str) -> Any:
        """The value. ConfigError, naming option, value, bounds and `origin`, when it can't be one."""
        if isinstance(self.default, bool):
            good, wanted = isinstance(value, bool), "true or false"
        elif isinstance(self.default, int):
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            good, wanted = is_integer and self.low <= value <= self.high, f"an integer in {self.bounds}"
        elif self.choices:
            good, wanted = isinstance(value, str) and value in self.choices, f"one of {self.bounds}"
        else:
            return self._check_text(value, origin)
        if not good:
            raise ConfigError(self.name, f"needs {wanted}, not {self._quote(value)}", origin)
        return value

    def read(self, text: str, origin: str) -> Any:
        """The value that a text stands for. ConfigError as check."""
        word = text.strip().lower()
        if isinstance(self.default, bool):
            if word in _TRUE or word in _FALSE:
                return word in _TRUE
        elif isinstance(self.default, int):
            if re.fullmatch(r"[+-]?[0-9]{1,20}", word):
                return self.check(int(word), origin)
        elif self.choices:
            return self.check(word, origin)
        return self.check(text, origin)

    def _check_text(self, value: Any, origin: str) -> str:
        if not isinstance(value, str):
            raise ConfigError(self.name, f"needs a text, not {self._quote(value)}", origin)
        try:
            size = len(value.encode())
        except UnicodeEncodeError as error:
            problem = f"is no valid Unicode: half a character (a surrogate) at position {error.start}"
            raise ConfigError(self.name, problem, origin) from None
        if size > self.bytes_max:
            raise ConfigError(self.name, f"has {size} bytes, the limit is {self.bytes_max}", origin)
        return value

    def _quote(self, value: Any) -> str:
        return f"a {type(value).__name__}" if self.is_secret else ascii(value)[:200]


def integer(default: int, low: int, high: int, unit: str, meaning: str) -> Any:
    """A dataclass field that is an option: an integer in low..high."""
    return _declared(default, meaning, unit=unit, low=low, high=high)


def flag(default: bool, meaning: str) -> Any:
    """A dataclass field that is an option: true or false."""
    return _declared(default, meaning)


def choice(choices: Sequence[str], meaning: str) -> Any:
    """A dataclass field that is an option: one of some words, the first unless told otherwise."""
    return _declared(choices[0], meaning, choices=tuple(choices))


def text(bytes_max: int, meaning: str, *, variable: str = "", is_secret: bool = False) -> Any:
    """A dataclass field that is an option: a text of at most so many bytes of UTF-8, empty unless told otherwise."""
    return _declared("", meaning, bytes_max=bytes_max, variable=variable, is_secret=is_secret)


def _declared(default: Any, meaning: str, **rest: Any) -> Any:
    return field(default=default, metadata={"option": {"meaning": meaning, "default": default, **rest}})


def options_of(declaration: type) -> dict[str, Option]:
    """The options among the fields of a dataclass, by name."""
    return {
        declared.name: Option(name=declared.name, **declared.metadata["option"])
        for declared in fields(declaration)
        if "option" in declared.metadata
    }


class Source(NamedTuple):
    """Somewhere that options come from."""

    values: Mapping[str, Any]
    """By option; None and the empty text mean that it is not set."""
    origin: Callable[[str], str]
    """How a message calls the place of an option."""
    are_texts: bool = False

    def has(self, name: str) -> bool:
        """Whether the option is set here."""
        value = self.values.get(name)
        return value is not None and not (isinstance(value, str) and value.strip() == "")

    def value_of(self, option: Option) -> Any:
        """ConfigError when it can't be one."""
        take = option.read if self.are_texts else option.check
        return take(self.values[option.name], self.origin(option.name))


def arguments(values: Mapping[str, Any]) -> Source:
    """Arguments of a call."""
    return Source(values, lambda name: f"argument {name!r}")


def environment(options: Mapping[str, Option], environ: Mapping[str, str]) -> Source:
    """The environment. ConfigError for a variable that looks like one of ours and is none."""
    names = {option.environment: name for name, option in options.items()}
    for variable in environ:
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in names and environ[variable]:
            if is_service_link(variable, environ[variable]):
                continue
            raise ConfigError(variable, f"no such environment variable{did_you_mean(variable, names)}")
    found = {name: environ[variable] for variable, name in names.items() if variable in environ}
    return Source(found, lambda name: f"environment variable {options[name].environment}", are_texts=True)


def resolve(options: Mapping[str, Option], sources: Sequence[Source]) -> dict[str, Any]:
    """The value of each option that is set, from the first source that sets it. ConfigError."""
    values = {}
    for name, option in options.items():
        source = next((source for source in sources if source.has(name)), None)
        if source is not None:
            values[name] = source.value_of(option)
    return values
