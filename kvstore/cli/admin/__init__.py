"""`kvstore admin`: look at a running store and change it, over the admin service of its masters.

A command is one file with `register(app)` and one entry in COMMANDS.
"""

from __future__ import annotations

import typer

from kvstore.cli.admin import clear, drain, forget, keep, namespaces, quota, segments, stat, status

COMMANDS = (status, segments, namespaces, stat, keep, quota, clear, forget, drain)

HELP = """Look at a running store, and change it.

Example:  kvstore admin status --master master-0:7441,master-1:7441

Any of the masters will do: the leader is found through them. In a container of a master nothing needs to be given.

Exit codes: 0 done; 1 refused, or not found; 2 a wrong command line, or an ambiguous name; 3 no master answered in time.
"""


def register(app: typer.Typer) -> None:
    admin = typer.Typer(name="admin", help=HELP, no_args_is_help=True, rich_markup_mode="rich")
    for command in COMMANDS:
        command.register(admin)
    app.add_typer(admin)
