"""`kvstore admin namespaces`: whose pages the store holds."""

from __future__ import annotations

import typer

from kvstore.cli.admin.cluster import exchange, listed
from kvstore.cli.admin.output import JsonOption, print_json, print_table, size
from kvstore.cli.admin.views import View, identity_summary, namespace_view
from kvstore.cli.settings_options import with_settings_options
from kvstore.common.config.admin import AdminSettings
from kvstore.v1 import admin_pb2 as pb


def register(app: typer.Typer) -> None:
    app.command("namespaces")(with_settings_options(AdminSettings, namespaces))


def namespaces(settings: AdminSettings, json: JsonOption = False) -> None:
    """List the namespaces: one for each model and format of pages, or name of string keys.

    Example:  kvstore admin namespaces --master master-0:7441

    Two rows of one model mean that its engines do not share pages: IDENTITY shows in what they differ
    (the whole of it with --json).
    """
    views = sorted(list_namespaces(settings), key=lambda view: -view["object_bytes"])
    if json:
        print_json({"namespaces": views})
    else:
        print_table(("ID", "EPOCH>", "OBJECTS>", "BYTES>", "NAME", "IDENTITY"), map(_row, views))


def list_namespaces(settings: AdminSettings) -> list[View]:
    found = exchange(settings, lambda cluster: listed(cluster, "ListNamespaces", pb.ListNamespacesRequest()))
    return [namespace_view(namespace) for namespace in found]


def _row(view: View) -> tuple[str, ...]:
    return (
        view["id"],
        str(view["epoch"]),
        str(view["object_count"]),
        size(view["object_bytes"]),
        view["name"],
        identity_summary(view["identity"]),
    )
