"""`kvstore master`: one master in the foreground."""

from __future__ import annotations

import errno

import typer
import uvloop

from kvstore.cli.child_process import JsonOption, ParentOption, announce, die_with_parent
from kvstore.cli.errors import fail
from kvstore.cli.settings_options import with_settings_options
from kvstore.common.config.master import MasterSettings
from kvstore.common.errors import KvstoreError
from kvstore.master.server import MasterServer, run


def register(app: typer.Typer) -> None:
    app.command("master")(with_settings_options(MasterSettings, master))


def master(settings: MasterSettings, json: JsonOption = False, parent_pid: ParentOption = 0) -> None:
    """Keep the directory: which page lives on which segment. Clients and segments find each other here.

    Example:  kvstore master --host 0.0.0.0 --metadata rocksdb:///var/lib/kvstore/master

    What it has acknowledged survives kill -9: start it again with the same --metadata.
    """
    die_with_parent(parent_pid)

    def on_listening(server: MasterServer) -> None:
        if json:
            announce(
                "listening",
                host=settings.host,
                directory_port=server.directory_port,
                control_port=server.control_port,
                http_port=server.http_port,
            )

    try:
        uvloop.run(run(settings, on_listening))
    except KvstoreError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error}: {_remedy(error)}")


def _remedy(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "raise the limit of open files (ulimit -n, LimitNOFILE= of systemd)"
    return (
        "stop what listens there, or choose another port with --directory-port, --control-port or --http-port (0 picks a "
        "free one; of `kvstore up` the last is --master-http-port)"
    )
