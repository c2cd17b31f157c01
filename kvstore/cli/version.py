"""`kvstore version`: what is installed."""

from __future__ import annotations

import platform

import typer

from kvstore import __version__
from kvstore_client import _native


def register(app: typer.Typer) -> None:
    app.command("version")(version)


def version() -> None:
    """Print the version of kvstore, of Python, and the digest implementation this CPU gets.

    Example:  kvstore version
    """
    typer.echo(
        f"kvstore {__version__} (Python {platform.python_version()}, {platform.machine()}, "
        f"crc32c: {_native.crc32c_implementation()})"
    )
