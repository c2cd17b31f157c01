"""The `kvstore` command. A command is one file with `register(app)` and one entry in COMMANDS."""

from __future__ import annotations

import typer

from kvstore.cli import admin, config, master, segment, up, version

COMMANDS = (up, master, segment, admin, config, version)

app = typer.Typer(
    name="kvstore",
    help="A shared L3 tier for SGLang HiCache.\n\nTry it on one machine:  kvstore up --size 4GiB",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for _command in COMMANDS:
    _command.register(app)


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
