"""`kvstore admin forget`: removes a namespace, so that it counts no more."""

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
    app.command("forget")(with_settings_options(AdminSettings, forget))


def forget(
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
    """Remove a namespace that nobody uses any more, with what it holds, so that it no longer counts against namespaces_max.

    Example:  kvstore admin forget Llama-3.1-8B --master master-0:7441

    Each model, revision and format of pages has a namespace, and each roll-out may add one. An engine that still uses it opens it
    anew, empty.
    """
    try:
        view = select_namespace(list_namespaces(settings), namespace)
    except AdminFailure as failure:
        fail(str(failure), code=failure.code)
    holds = f"{counted(view['object_count'], 'object')}, {size(view['object_bytes'])}"
    print(f"namespace {describe_namespace(view)} holds {holds}", file=sys.stderr)
    confirm("It is removed, and everything in it becomes unreachable, for good.", yes)

    async def ask(call: Any) -> Any:
        return await call("ForgetNamespace", pb.ForgetNamespaceRequest(id=bytes.fromhex(view["id"])))

    forgotten = exchange(settings, lambda cluster: cluster.change(ask))
    result = {
        "name": view["name"],
        "id": view["id"],
        "dropped_object_count": forgotten.object_count,
        "dropped_object_bytes": forgotten.object_bytes,
    }
    if json:
        print_json(result)
    else:
        dropped = f"{counted(forgotten.object_count, 'object')}, {size(forgotten.object_bytes)}"
        print(f"forgotten: {dropped} dropped")
