"""`kvstore admin clear`: ends a namespace's epoch, so that nothing in it is found any more."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from kvstore.cli.admin.cluster import exchange
from kvstore.cli.admin.failures import AdminFailure
from kvstore.cli.admin.namespaces import list_namespaces
from kvstore.cli.admin.output import JsonOption, YesOption, confirm, counted, print_json, size
from kvstore.cli.admin.selection import describe_namespace, select_namespace
from kvstore.cli.errors import fail
from kvstore.cli.settings_options import with_settings_options
from kvstore.common.config.admin import AdminSettings
from kvstore.v1 import admin_pb2 as pb


def register(app: typer.Typer) -> None:
    app.command("clear")(with_settings_options(AdminSettings, clear))


def clear(
    settings: AdminSettings,
    namespace: Annotated[
        str,
        typer.Argument(
            metavar="NAMESPACE", help="Its id or name, or the beginning of one.", show_default=False
        ),
    ],
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Make everything in a namespace unreachable, for every engine, at once and for good.

    Example:  kvstore admin clear Llama-3.1-8B --master master-0:7441

    It is what SGLang's clear does: the epoch goes up by one. Engines go on with misses; segments evict the old
    pages first.
    """
    try:
        view = select_namespace(list_namespaces(settings), namespace)
    except AdminFailure as failure:
        fail(str(failure), code=failure.code)
    holds = f"{counted(view['object_count'], 'object')}, {size(view['object_bytes'])}"
    print(f"namespace {describe_namespace(view)} holds {holds}", file=sys.stderr)
    confirm("Everything in it becomes unreachable, for good.", yes)

    async def ask(call: Any) -> Any:
        return await call("ClearNamespace", pb.ClearNamespaceRequest(id=bytes.fromhex(view["id"])))

    cleared = exchange(settings, lambda cluster: cluster.change(ask))
    result = {
        "name": view["name"],
        "old_id": view["id"],
        "id": cleared.id.hex(),
        "epoch": cleared.epoch,
        "already_cleared": cleared.already_cleared,
        "dropped_object_count": cleared.object_count,
        "dropped_object_bytes": cleared.object_bytes,
    }
    if json:
        print_json(result)
    elif cleared.already_cleared:
        print(f"it had been cleared already: now {cleared.id.hex()}, epoch {cleared.epoch}")
    else:
        dropped = f"{counted(cleared.object_count, 'object')}, {size(cleared.object_bytes)}"
        print(f"cleared: {dropped} dropped; now {cleared.id.hex()}, epoch {cleared.epoch}")
