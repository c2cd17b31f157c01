"""Prints the requirements of pyproject.toml's build system (`build`) and of named extras, for `pip install -r`.

usage: requirements.py build server test ...

Installing them apart from the project lets its own build run without isolation, so that it is incremental.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def requirements(project: dict[str, Any], groups: list[str]) -> list[str]:
    """The requirement lines of the groups; references from one extra to another are left out: name both."""
    extras: dict[str, list[str]] = project["project"]["optional-dependencies"]
    own_name: str = project["project"]["name"]
    lines: list[str] = []
    for group in groups:
        if group == "build":
            lines += project["build-system"]["requires"]
        elif group in extras:
            lines += [line for line in extras[group] if not re.match(rf"{re.escape(own_name)}\b", line)]
        else:
            raise SystemExit(f"pyproject.toml has no extra {group!r}; it has build, {', '.join(extras)}")
    return lines


if __name__ == "__main__":
    print("\n".join(requirements(tomllib.loads(PYPROJECT.read_text()), sys.argv[1:])))
