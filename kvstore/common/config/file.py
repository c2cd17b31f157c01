"""Reads a configuration file: YAML, a mapping of sections to mappings of settings. Every value stays text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from kvstore.common.config.environment import remedy, suggestion

FILE_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class Given:
    """What somebody gave for a setting, and where: 'FILE:LINE: master.host', 'environment NAME' or '--option'."""

    text: str
    origin: str


@dataclass
class ConfigFile:
    """`sections`: what is given for each; `faults`: one line for each thing that is wrong, all of them."""

    sections: dict[str, dict[str, Given]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def read_config_file(path: Path, known: Mapping[str, list[str]]) -> ConfigFile:
    """`known`: the names of each section. Values are not checked, names are. Empty values count as not given."""
    found = ConfigFile()
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(FILE_BYTES_MAX + 1)
        if len(text) > FILE_BYTES_MAX:
            raise ValueError(f"it is larger than {FILE_BYTES_MAX >> 20} MiB")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        found.faults.append(f"{path}{mark}: not YAML: {error.problem or error.context}")
        return found
    except RecursionError:
        found.faults.append(f"{path}: not YAML that can be read: its brackets or lists are nested too deeply")
        return found
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        found.faults.append(f"{path}: the configuration file can't be read: {why}")
        return found
    for section, line, node in _entries(root, str(path), "the file", found.faults):
        where = f"{path}:{line}: {section}"
        if section not in known:
            sections = suggestion(section, known, f"the sections are {', '.join(known)}")
            found.faults.append(f"{where}: no such section; {sections}")
            continue
        given = found.sections.setdefault(section, {})
        for name, line, value in _entries(node, where, section, found.faults):
            origin = f"{path}:{line}: {section}.{name}"
            if name not in known[section]:
                gone = remedy(name, "take it out") if section in ("segment", "up") else ""
                found.faults.append(
                    f"{origin}: no such setting; {gone or suggestion(name, known[section], 'take it out')}"
                )
                continue
            text_of = _text(value)
            if text_of is None:
                found.faults.append(f"{origin}: needs one value, or a list of them")
            elif text_of.strip():
                given[name] = Given(text_of, origin)
    return found


def _entries(
    node: yaml.Node | None, where: str, what: str, faults: list[str]
) -> Iterator[tuple[str, int, yaml.Node]]:
    """(name, line, value) of a mapping."""
    if node is None or (isinstance(node, yaml.ScalarNode) and not node.value.strip(" ~")):
        return  # an empty file or section
    if not isinstance(node, yaml.MappingNode):
        faults.append(f"{where}: {what} consists of lines 'name: value'")
        return
    seen: set[str] = set()
    for key, value in node.value:
        name = str(key.value)
        line = key.start_mark.line + 1
        if name in seen:
            faults.append(f"{where}: {name} is given twice, again in line {line}: keep one")
        seen.add(name)
        yield name, line, value


def _text(node: yaml.Node) -> str | None:
    """As an option would say it; None for what can't be said so."""
    if isinstance(node, yaml.ScalarNode):
        return "" if node.tag == "tag:yaml.org,2002:null" else str(node.value)
    if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return ",".join(str(item.value) for item in node.value)
    return None
