"""`kvstore admin clear`: ends a namespace's epoch, so that nothing in it is found any more."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any

import typer

from kvstore.cli.admin.clear_wait import unconfirmed_text, wait_confirmed
from kvstore.cli.admin.cluster import exchange
from kvstore.cli.admin.failures import EXIT_UNCONFIRMED, AdminFailure
from kvstore.cli.admin.namespaces import list_namespaces
from kvstore.cli.admin.output import JsonOption, YesOption, confirm, counted, print_json, size
from kvstore.cli.admin.selection import describe_namespace, select_namespace
from kvstore.cli.errors import fail
from kvstore.cli.settings_options import with_settings_options
from kvstore.common.config.admin import AdminSettings
from kvstore.v1 import admin_pb2 as pb

_FULL_ID = re.compile(r"[0-9a-fA-F]{16}")


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
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Return only when every segment and master has confirmed that it serves nothing of it.",
        ),
    ] = False,
    wait_s: Annotated[
        float, typer.Option("--wait-s", help="How long --wait waits at most.", min=0.1, max=86_400)
    ] = 30.0,
    json: JsonOption = False,
) -> None:
    """Make everything in a namespace unreachable, for every engine, at once and for good.

    Example:  kvstore admin clear Llama-3.1-8B --master master-0:7441

    It is what SGLang's clear does: the epoch goes up by one. Engines go on with misses; segments evict the old
    pages first. Before new weights are served under the same identity say --wait: until then a server that was cut off
    may not know. What was cleared before can be waited for by its old id. Exit code 4: cleared, but not confirmed by all.
    """
    try:
        views = list_namespaces(settings)
        if _FULL_ID.fullmatch(namespace) and all(view["id"] != namespace.lower() for view in views):
            old_id, name = namespace.lower(), ""  # cleared before; the leader knows
        else:
            view = select_namespace(views, namespace)
            old_id, name = view["id"], view["name"]
            holds = f"{counted(view['object_count'], 'object')}, {size(view['object_bytes'])}"
            print(f"namespace {describe_namespace(view)} holds {holds}", file=sys.stderr)
        confirm("Everything in it becomes unreachable, for good.", yes)
    except AdminFailure as failure:
        fail(str(failure), code=failure.code)

    async def ask(call: Any) -> Any:
        return await call("ClearNamespace", pb.ClearNamespaceRequest(id=bytes.fromhex(old_id)))

    cleared = exchange(settings, lambda cluster: cluster.change(ask))
    unconfirmed = _waited(settings, old_id, wait_s) if wait else None
    result = {
        "name": name,
        "old_id": old_id,
        "id": cleared.id.hex(),
        "epoch": cleared.epoch,
        "already_cleared": cleared.already_cleared,
        "dropped_object_count": cleared.object_count,
        "dropped_object_bytes": cleared.object_bytes,
        "unconfirmed": unconfirmed,
    }
    if json:
        print_json(result)
    elif cleared.already_cleared:
        print(f"it had been cleared already: now {cleared.id.hex()}, epoch {cleared.epoch}")
    else:
        dropped = f"{counted(cleared.object_count, 'object')}, {size(cleared.object_bytes)}"
        print(f"cleared: {dropped} dropped; now {cleared.id.hex()}, epoch {cleared.epoch}")
    if unconfirmed:
        fail(*unconfirmed_text(bytes.fromhex(old_id), unconfirmed, wait_s), code=EXIT_UNCONFIRMED)
    if wait and not json:
        print("every segment and master has confirmed that it serves nothing of it")


def _waited(settings: AdminSettings, old_id: str, wait_s: float) -> list[str]:
    try:
        return wait_confirmed(settings, bytes.fromhex(old_id), wait_s)
    except AdminFailure as failure:
        fail(f"it is cleared, but who has confirmed can't be asked: {failure}", code=failure.code)
