"""Tables for people, JSON for scripts. Results go to stdout; warnings and questions to stderr."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvstore.cli.errors import EXIT_FAILED, EXIT_USAGE, fail
from kvstore.common.sizes import format_size

# A row is never cut: on a narrower terminal it goes on in the next line.
TABLE_WIDTH_MIN = 240
UNKNOWN = "-"

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one line of JSON instead of text for people.")
]
YesOption = Annotated[
    bool, typer.Option("--yes", help="Don't ask. Needed where there is no terminal to ask on.")
]


def print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, separators=(",", ":")), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A column whose heading ends in '>' is aligned right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = column.endswith(">")
        table.add_column(column.rstrip(">"), justify="right" if right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    console = Console(width=max(shutil.get_terminal_size().columns, TABLE_WIDTH_MIN), highlight=False)
    with console.capture() as drawn:
        console.print(table)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()), flush=True)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    for name, value in facts:
        print(f"{name:<12}{printable(value)}".rstrip())


def printable(text: str) -> str:
    """Names come from clients: none of them steers the terminal."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def size(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else format_size(size_bytes)


def count(number: int | None) -> str:
    return UNKNOWN if number is None else str(number)


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(milliseconds: int | None) -> str:
    if milliseconds is None:
        return UNKNOWN
    seconds = milliseconds / 1000
    for unit_s, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.1f} s"


def confirm(question: str, yes: bool) -> None:
    """Returns when it may be done, else ends the process."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f"{question} There is no terminal to ask on: say --yes", code=EXIT_USAGE)
    if not typer.confirm(f"{question} Do it?", err=True):
        fail("nothing was changed", code=EXIT_FAILED)
