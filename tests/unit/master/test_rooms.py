"""Which rooms of the master know which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
SOURCES = {"kvstore": REPOSITORY / "kvstore", "kvstore_client": REPOSITORY / "client" / "kvstore_client"}
# What waits, what speaks to others, what has a clock.
IO = {
    "asyncio",
    "grpc",
    "threading",
    "socket",
    "time",
    "uvloop",
    "rocksdict",
    "prometheus_client",
    "logging.handlers",
}


def module_path(name: str) -> Path | None:
    """The file of one of our own modules; None for others, and for names that a module defines."""
    package, _, rest = name.partition(".")
    if package not in SOURCES:
        return None
    base = SOURCES[package].joinpath(*rest.split(".")) if rest else SOURCES[package]
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def imports(path: Path) -> Iterator[str]:
    """What a module names in import statements, wherever they stand: `a.b`, and `a.b.c` for `from a.b import c`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def reached(start: Path) -> dict[str, str]:
    """Every module that is imported from `start` on -> the chain that leads there."""
    chains: dict[str, str] = {}
    queue = [(start, start.stem)]
    while queue:
        path, chain = queue.pop()
        for name in imports(path):
            if name in chains:
                continue
            chains[name] = f"{chain} -> {name}"
            if (own := module_path(name)) is not None:
                queue.append((own, chains[name]))
    return chains


def modules(room: str) -> list[Path]:
    found = sorted((REPOSITORY / "kvstore" / "master" / room).rglob("*.py"))
    assert found
    return found


@pytest.mark.parametrize("path", modules("state"), ids=lambda path: path.stem)
def test_the_state_machine_reaches_nothing_that_waits_speaks_or_has_a_clock(path: Path) -> None:
    assert [chain for name, chain in reached(path).items() if name.split(".")[0] in IO] == []


@pytest.mark.parametrize(
    ("room", "closed"),
    [
        ("state", ("ports", "ha", "directory", "roles", "server", "metrics", "committer")),
        ("metadata", ("ha", "ports", "state", "directory", "roles", "server")),
    ],
)
def test_what_lies_below_knows_nothing_of_what_lies_above(room: str, closed: tuple[str, ...]) -> None:
    for path in modules(room):
        for name in reached(path):
            assert not name.startswith(tuple(f"kvstore.master.{above}" for above in closed)), (
                f"{path}: {name}"
            )


def test_the_walk_finds_what_is_reached_by_way_of_others() -> None:
    chains = reached(REPOSITORY / "kvstore" / "master" / "directory.py")
    assert "asyncio" in chains and "kvstore.master.state.segment_logs" in chains
    assert chains["kvstore.master.state.journal_entries"].count("->") >= 2
