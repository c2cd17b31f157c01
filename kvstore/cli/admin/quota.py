"""`kvstore admin quota`: how many bytes a namespace, or all with one tag, may have."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated, Any

import typer

from kvstore.cli.admin.cluster import exchange, listed
from kvstore.cli.admin.failures import AdminFailure
from kvstore.cli.admin.namespaces import list_namespaces
from kvstore.cli.admin.output import JsonOption, counted, print_json, print_table, printable, size
from kvstore.cli.admin.selection import describe_namespace, select_namespace
from kvstore.cli.admin.views import View, identity_summary
from kvstore.cli.errors import EXIT_USAGE, fail
from kvstore.cli.settings_options import with_settings_options
from kvstore.common.config.admin import AdminSettings
from kvstore.common.sizes import parse_size
from kvstore.v1 import admin_pb2 as pb

TagOption = Annotated[
    str,
    typer.Option(
        metavar="TAG", help="All namespaces whose identity has this tag, together.", show_default=False
    ),
]
HELP = """Say how many bytes a namespace, or all with one tag, may have in the store.

Example:  kvstore admin quota set Llama-3.1-8B 200GiB

Example:  kvstore admin quota set --tag team-a 1TiB

Whoever has more gives up its own pages, the longest unused first, and no others do for its sake.
"""


def register(app: typer.Typer) -> None:
    quota = typer.Typer(name="quota", help=HELP, no_args_is_help=True, rich_markup_mode="rich")
    quota.command("set")(with_settings_options(AdminSettings, set_quota))
    quota.command("show")(with_settings_options(AdminSettings, show))
    quota.command("remove")(with_settings_options(AdminSettings, remove))
    app.add_typer(quota)


def set_quota(
    settings: AdminSettings,
    of: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAMESPACE] BYTES",
            help="A namespace's id or name, or the beginning of one (not with --tag); and as 512MiB, 200GiB or 1TiB how much it may have. "
            "0: nothing.",
            show_default=False,
        ),
    ],
    tag: TagOption = "",
    json: JsonOption = False,
) -> None:
    """Set the quota of a namespace, or of all with one tag.

    Example:  kvstore admin quota set Llama-3.1-8B 200GiB --master master-0:7441

    Example:  kvstore admin quota set --tag team-a 1TiB

    It holds over clears, restarts and fail-overs. What is there beyond it goes within seconds, the longest unused first. A
    namespace that has a quota and a tag with one is kept to both.
    """
    *name, amount = of
    try:
        limit_bytes = parse_size(amount)
    except ValueError as error:
        fail(str(error), code=EXIT_USAGE)
    request = _subject(settings, name, tag)
    request.limit_bytes = limit_bytes
    view = _change(settings, request)
    if json:
        print_json({"quota": view})
    else:
        print(f"{_described(view)}: {size(view['limit_bytes'])}, {size(view['used_bytes'])} in use")


def show(settings: AdminSettings, json: JsonOption = False) -> None:
    """List the quotas, and how much of each is used.

    Example:  kvstore admin quota show --master master-0:7441
    """
    found = exchange(settings, lambda cluster: listed(cluster, "ListQuotas", pb.ListQuotasRequest()))
    views = sorted(map(_view, found), key=lambda view: -view["used_bytes"])
    if json:
        print_json({"quotas": views})
        return
    rows = (
        (
            "tag" if view["tag"] is not None else "namespace",
            size(view["limit_bytes"]),
            size(view["used_bytes"]),
            view["namespace_count"],
            _of(view),
        )
        for view in views
    )
    print_table(("KIND", "QUOTA>", "BYTES>", "NAMESPACES>", "OF"), rows)


def remove(
    settings: AdminSettings,
    namespace: Annotated[
        str,
        typer.Argument(
            metavar="[NAMESPACE]",
            help="Its id or name, or the beginning of one; or the whole identity, of one that is not there any more.",
            show_default=False,
        ),
    ] = "",
    tag: TagOption = "",
    json: JsonOption = False,
) -> None:
    """Take a quota back: from then on only the size of the store is a limit.

    Example:  kvstore admin quota remove --tag team-a --master master-0:7441
    """
    request = _subject(settings, [namespace] if namespace else [], tag)
    request.remove = True
    view = _change(settings, request)
    if json:
        print_json({"removed": {name: view[name] for name in ("identity", "tag")}})
    else:
        print(f"{_described(view)}: no quota any more")


def _subject(settings: AdminSettings, name: list[str], tag: str) -> Any:
    """The request, without what is wanted; exits where nothing or several things are meant."""
    if len(name) + bool(tag) != 1:
        fail("name one namespace, or say --tag: one of the two", code=EXIT_USAGE)
    if tag:
        return pb.SetQuotaRequest(tag=tag)
    if name[0].startswith("{"):
        return pb.SetQuotaRequest(identity=name[0])
    try:
        view = select_namespace(list_namespaces(settings), name[0])
    except AdminFailure as failure:
        fail(str(failure), code=failure.code)
    print(f"namespace {describe_namespace(view)}", file=sys.stderr)
    return pb.SetQuotaRequest(id=bytes.fromhex(view["id"]))


def _change(settings: AdminSettings, request: Any) -> View:
    async def ask(call: Any) -> Any:
        return await call("SetQuota", request)

    return _view(exchange(settings, lambda cluster: cluster.change(ask)))


def _view(quota: Any) -> View:
    return {
        "tag": quota.tag or None,
        "identity": json_module.loads(quota.identity) if quota.identity else None,
        "limit_bytes": quota.limit_bytes,
        "used_bytes": quota.used_bytes,
        "namespace_count": quota.namespace_count,
    }


def _of(view: View) -> str:
    if view["tag"] is not None:
        return printable(view["tag"])
    return f"{view['identity'].get('model') or view['identity'].get('name') or ''} {identity_summary(view['identity'])}"


def _described(view: View) -> str:
    kind = "tag" if view["tag"] is not None else "namespace"
    return f"{kind} {_of(view).strip()} ({counted(view['namespace_count'], 'namespace')})"
