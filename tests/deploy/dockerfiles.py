"""Reads Dockerfiles as far as the tests need: instructions with continuation lines joined, stages, and what is copied."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class Instruction:
    name: str
    flags: dict[str, str]
    text: str
    """What follows the flags."""

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)

    @property
    def commands(self) -> list[list[str]]:
        """Of a RUN: the commands that `&&` joins."""
        parts = [shlex.split(part) for part in self.text.split("&&")]
        return [part for part in parts if part]


def read_dockerfile(path: Path) -> list[list[Instruction]]:
    """The stages, each beginning with its FROM; an ARG before the first FROM counts to the first stage."""
    joined = path.read_text().replace("\\\n", " ")
    stages: list[list[Instruction]] = [[]]
    for line in joined.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, rest = line.strip().partition(" ")
        instruction = _instruction(name, rest.strip())
        if instruction.name == "FROM" and any(i.name == "FROM" for i in stages[-1]):
            stages.append([])
        stages[-1].append(instruction)
    return stages


def _instruction(name: str, rest: str) -> Instruction:
    flags = {}
    while rest.startswith("--"):
        word, _, rest = rest.partition(" ")
        flag, _, value = word[2:].partition("=")
        flags[flag] = value
        rest = rest.strip()
    return Instruction(name, flags, rest)


def copied_from_context(stages: list[list[Instruction]]) -> list[str]:
    """Paths that COPY takes out of the build context."""
    return [
        source
        for stage in stages
        for instruction in stage
        if instruction.name == "COPY" and "from" not in instruction.flags
        for source in instruction.words[:-1]
    ]


def is_ignored(ignore_file: Path, path: str) -> bool:
    """Whether a .dockerignore keeps `path` (relative, of a file or directory) out of the context: the last match decides."""
    ignored = False
    parts = PurePosixPath(path).parts
    prefixes = ["/".join(parts[: length + 1]) for length in range(len(parts))]
    for line in ignore_file.read_text().splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        keeps = pattern.startswith("!")
        pattern = pattern.lstrip("!")
        if pattern.startswith("**/"):
            matches = any(fnmatchcase(part, pattern[3:]) for part in parts)
        else:
            matches = any(fnmatchcase(prefix, pattern) for prefix in prefixes)
        if matches:
            ignored = not keeps
    return ignored
