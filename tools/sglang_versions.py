"""The SGLang versions that the adapter is run with (tests/sglang/versions.toml).

usage: sglang_versions.py install FOLDER    older versions beside the installed one, each in a folder of its name
       sglang_versions.py table             what works with which of them, for docs/sglang-versions.md

`install` takes SGLang's own wheels, and nothing that they ask for, from the package index: by their hashes, once. Of a wheel
only the sources are unpacked; compiled parts, diffusion models and SGLang's own tests stay out.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

VERSIONS = Path(__file__).resolve().parent.parent / "tests" / "sglang" / "versions.toml"
UNPACKED_SUFFIXES = (".py", ".cpp", ".cuh", ".h")
LEFT_OUT = ("sglang/multimodal_gen/", "sglang/test/")
# In a version's folder: the hashes that it was made of. Written last.
MARK = "installed"


@dataclass(frozen=True)
class Version:
    """One of SGLang's releases."""

    number: str
    controller: str
    attach: bool
    side_pools: bool
    metrics_module: str
    metrics_setting: bool
    prefix_keys_default: str
    seeded_hashes: bool
    survives_exceptions: bool
    sha256: tuple[str, ...] = ()


def versions() -> list[Version]:
    """Oldest first."""
    listed: dict[str, list[dict[str, Any]]] = tomllib.loads(VERSIONS.read_text())
    return [Version(**{**entry, "sha256": tuple(entry.get("sha256", ()))}) for entry in listed["version"]]


def newest() -> Version:
    """The one of requirements.txt and of deploy/."""
    return versions()[-1]


def install(version: Version, folder: Path) -> None:
    """Into FOLDER/NUMBER. OSError or CalledProcessError where that fails; then nothing is there."""
    home = folder / version.number
    hashes = "\n".join(version.sha256)
    mark = home / MARK
    if mark.is_file() and mark.read_text() == hashes:
        return
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        wheel = download(version, Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(home, [name for name in archive.namelist() if is_unpacked(name)])
    mark.write_text(hashes)


def download(version: Version, folder: Path) -> Path:
    """The wheel for this Python, with one of the hashes."""
    requirement = folder / "requirement.txt"
    options = "".join(f" --hash=sha256:{digest}" for digest in version.sha256)
    requirement.write_text(f"sglang=={version.number}{options}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    options_of_pip = [
        "--only-binary",
        ":all:",
        "--require-hashes",
        "--dest",
        str(folder),
        "-r",
        str(requirement),
    ]
    subprocess.run([*command, *options_of_pip], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def is_unpacked(name: str) -> bool:
    """Whether this file of a wheel is."""
    return PurePosixPath(name).suffix in UNPACKED_SUFFIXES and not name.startswith(LEFT_OUT)


def table() -> str:
    """Markdown; newest first."""
    rows = [
        ["SGLang", "controller of its servers", "KV pages", "side pools (v2)", "LoRA and `cache_salt`",
         "attach at run time", "storage metrics"],
    ]  # fmt: skip
    for version in reversed(versions()):
        rows.append(
            [
                version.number,
                f"`{version.controller}`",
                "v1, v0",
                "yes" if version.side_pools else "no such interface",
                "hashes of their own" if version.seeded_hashes else "**hashes of the plain prompt**",
                "yes" if version.attach else "no",
                "yes" if version.metrics_setting else "yes, always counted",
            ]
        )
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


def main() -> int:
    match sys.argv[1:]:
        case ["install", folder]:
            for version in versions():
                if version.sha256:
                    install(version, Path(folder))
        case ["table"]:
            print(table(), end="")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
