"""`kvstore admin stat`: where one object is."""

from __future__ import annotations

from typing import Annotated, Any

import grpc
import typer

from kvstore.cli.admin.cluster import Cluster, exchange, listed
from kvstore.cli.admin.failures import AdminFailure
from kvstore.cli.admin.object_keys import SHARD_HELP, SHARD_METAVAR, KeyOf, key_of
from kvstore.cli.admin.output import JsonOption, print_facts, print_json, print_table, size
from kvstore.cli.admin.segments import shown_state
from kvstore.cli.admin.selection import describe_namespace, select_namespace
from kvstore.cli.admin.views import View, namespace_view, segment_view
from kvstore.cli.errors import EXIT_FAILED, EXIT_USAGE, fail
from kvstore.cli.settings_options import with_settings_options
from kvstore.common.config.admin import AdminSettings
from kvstore.v1 import admin_pb2 as pb
from kvstore_client.keys import POOL_KV, POOL_STRING


def register(app: typer.Typer) -> None:
    app.command("stat")(with_settings_options(AdminSettings, stat))


def stat(
    settings: AdminSettings,
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="A string key; 64 hex digits with --page; 32 hex digits with --fingerprint.",
            show_default=False,
        ),
    ],
    namespace: Annotated[
        str,
        typer.Option(
            help="Id or name, or the beginning of one; without it the only namespace of that kind.",
            show_default=False,
        ),
    ] = "",
    page: Annotated[bool, typer.Option("--page", help="KEY is the key of a page (SGLang's hash).")] = False,
    fingerprint: Annotated[
        bool, typer.Option("--fingerprint", help="KEY is a fingerprint, as in the journal.")
    ] = False,
    pool: Annotated[int, typer.Option(min=0, max=POOL_STRING - 1, help="Pool of a page.")] = POOL_KV,
    shard: Annotated[
        str,
        typer.Option(
            metavar=SHARD_METAVAR,
            help=SHARD_HELP,
            show_default=False,
        ),
    ] = "",
    json: JsonOption = False,
) -> None:
    """Say where an object is: its length, its replicas, and how their segments are.

    Example:  kvstore admin stat self-test/1 --namespace kvstore-self-test

    Exit code 1 when the directory does not have it. Whether it is pinned is known to its segment alone.
    """
    wanted = key_of(key, page=page, is_fingerprint=fingerprint, pool=pool, shard=shard)
    found = exchange(settings, lambda cluster: _look_up(cluster, wanted, namespace))
    if json:
        print_json(found)
        raise typer.Exit(0 if found["found"] else EXIT_FAILED)
    if not found["found"]:
        hint = ""
        if wanted.kind == "string" and len(key) == 64:
            hint = "; if it is the key of a page, say --page"
        elif wanted.kind == "page" and not shard:
            hint = "; engines store a page in shards, name one with --shard"
        fail(f"not found: {key} ({wanted.kind}, fingerprint {found['fingerprint']}){hint}")
    _print(found)


async def _look_up(cluster: Cluster, key: KeyOf, namespace: str) -> View:
    view: View | None = None
    if key.kind != "fingerprint":
        view = _namespace_of(key, namespace, await _namespaces(cluster))
    fingerprint = key.fingerprint(bytes.fromhex(view["id"]) if view else b"")
    result: View = {
        "found": False,
        "key": key.text,
        "kind": key.kind,
        "fingerprint": fingerprint.hex(),
        "namespace": {name: view[name] for name in ("id", "name", "epoch")} if view else None,
    }
    found = await _stat(cluster, fingerprint)
    if found is None:
        return result
    segments = {
        s.index: segment_view(s) for s in await listed(cluster, "ListSegments", pb.ListSegmentsRequest())
    }
    replicas = [segments.get(index, _unlisted(index)) for index in found.segments]
    return {
        **result,
        "found": True,
        "length_bytes": found.length_bytes,
        "served": any(replica["state"] in ("live", "draining") for replica in replicas),
        "pinned": None,
        "replicas": [
            {
                name: replica[name]
                for name in ("index", "segment_id", "address", "state", "attached", "draining")
            }
            for replica in replicas
        ],
    }


async def _namespaces(cluster: Cluster) -> list[View]:
    found = await listed(cluster, "ListNamespaces", pb.ListNamespacesRequest())
    return [namespace_view(each) for each in found]


def _namespace_of(key: KeyOf, wanted: str, there: list[View]) -> View:
    if wanted:
        return select_namespace(there, wanted)
    kind = "named" if key.kind == "string" else "kv_pages"
    of_kind = [view for view in there if view["identity"].get("kind") == kind]
    if len(of_kind) == 1:
        return of_kind[0]
    listing = "; ".join(map(describe_namespace, of_kind[:10])) or "there is none"
    raise AdminFailure(f"say which namespace with --namespace: {listing}", EXIT_USAGE)


async def _stat(cluster: Cluster, fingerprint: bytes) -> Any:
    async def ask(call: Any) -> Any:
        try:
            return await call("StatObject", pb.StatObjectRequest(fingerprint=fingerprint))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise

    return await cluster.read(ask)


def _unlisted(index: int) -> View:
    """A segment that is forgotten, and whose entries are just being dropped."""
    return {
        "index": index,
        "segment_id": "",
        "address": "",
        "state": "gone",
        "attached": False,
        "draining": False,
    }


def _print(found: View) -> None:
    namespace = found["namespace"]
    print_facts(
        [
            ("key", f"{found['key']} ({found['kind']})"),
            *([("namespace", describe_namespace(namespace))] if namespace else []),
            ("fingerprint", found["fingerprint"]),
            ("length", f"{size(found['length_bytes'])} ({found['length_bytes']} bytes)"),
            ("served", "yes" if found["served"] else "no: none of its segments serves"),
        ]
    )
    print()
    rows = [(r["index"], r["segment_id"], r["address"], shown_state(r)) for r in found["replicas"]]
    print_table(("SEGMENT>", "ID", "ADDRESS", "STATE"), rows)
