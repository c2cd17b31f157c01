"""`kvstore admin namespaces`: whose pages the store holds."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import typer

from kvstore.cli.admin.cluster import Cluster, exchange, listed
from kvstore.cli.admin.output import JsonOption, count, duration, print_json, print_table, size
from kvstore.cli.admin.views import View, identity_summary, namespace_view, retention_view
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

    QUOTA is what it may have (`kvstore admin quota`), UNUSED how long nobody has asked for it.

    RETAINED is what goes last when space runs short, of a BUDGET that each namespace has; DEMOTED goes first
    (`kvstore admin keep`). Segments tell of them, by the master that leads.
    """
    found = exchange(settings, _listed_with_retention)
    views = sorted(found, key=lambda view: -view["object_bytes"])
    if json:
        print_json({"namespaces": views})
    else:
        columns = (
            "ID",
            "EPOCH>",
            "OBJECTS>",
            "BYTES>",
            "QUOTA>",
            "UNUSED>",
            "RETAINED>",
            "BUDGET>",
            "DEMOTED>",
            "NAME",
            "IDENTITY",
        )
        print_table(columns, map(_row, views))


async def _listed_with_retention(cluster: Cluster) -> list[View]:
    found = await listed(cluster, "ListNamespaces", pb.ListNamespacesRequest())
    told = await _retention(cluster)
    return [retention_view(namespace_view(each), told) for each in found]


async def _retention(cluster: Cluster) -> Any:
    """What the segments tell; None where the master that answers can't ask them."""

    async def ask(call: Any) -> Any:
        try:
            return await call("GetRetention", pb.GetRetentionRequest())
        except grpc.aio.AioRpcError:
            return None

    return await cluster.read(ask)


def list_namespaces(settings: AdminSettings) -> list[View]:
    found = exchange(settings, lambda cluster: listed(cluster, "ListNamespaces", pb.ListNamespacesRequest()))
    return [namespace_view(namespace) for namespace in found]


def _quota(view: View) -> int | None:
    """The lower of its own and that of its tag, which it has with others."""
    limits = [limit for limit in (view["quota_bytes"], view["tag_quota_bytes"]) if limit is not None]
    return min(limits) if limits else None


def _row(view: View) -> tuple[str, ...]:
    return (
        view["id"],
        str(view["epoch"]),
        str(view["object_count"]),
        size(view["object_bytes"]),
        size(_quota(view)),
        duration(view["unused_ms"]),
        size(view["retained_bytes"]),
        size(view["retained_bytes_max"]),
        count(view["demoted_objects"]),
        view["name"],
        identity_summary(view["identity"]),
    )
