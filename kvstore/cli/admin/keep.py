"""`kvstore admin keep`: which pages go last, and which first, when space runs short."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from kvstore.cli.admin.cluster import Cluster, exchange, listed
from kvstore.cli.admin.failures import EXIT_UNCONFIRMED
from kvstore.cli.admin.object_keys import SHARD_HELP, SHARD_METAVAR, KeyOf, key_of
from kvstore.cli.admin.output import JsonOption, counted, print_json, print_table, printable
from kvstore.cli.admin.selection import describe_namespace, select_namespace
from kvstore.cli.admin.views import View, namespace_view
from kvstore.cli.errors import EXIT_FAILED, EXIT_USAGE, fail
from kvstore.cli.settings_options import with_settings_options
from kvstore.common.config.admin import AdminSettings
from kvstore.common.durations import parse_duration_ms
from kvstore.v1 import admin_pb2 as pb
from kvstore_client.intent import Keep
from kvstore_client.keys import POOL_KV, POOL_STRING
from kvstore_client.protocol import KEEP_TTL_MS_MAX, KEYS_MAX

_DONE = {Keep.RETAIN: "retained", Keep.DEMOTE: "demoted", Keep.NORMAL: "as any other again"}


def register(app: typer.Typer) -> None:
    app.command("keep")(with_settings_options(AdminSettings, keep))


def keep(
    settings: AdminSettings,
    namespace: Annotated[
        str,
        typer.Argument(
            metavar="NAMESPACE", help="Its id or name, or the beginning of one.", show_default=False
        ),
    ],
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY]...",
            help="String keys; 64 hex digits with --page; 32 hex digits with --fingerprint. A chain of pages from its "
            "head on: where not all can be retained, the first are.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Everything in it that is there now.")] = False,
    retain: Annotated[
        bool, typer.Option("--retain", help="They go last, for --ttl, within the budgets of the segments.")
    ] = False,
    demote: Annotated[
        bool, typer.Option("--demote", help="They go first, until they are used again.")
    ] = False,
    normal: Annotated[bool, typer.Option("--normal", help="Takes back either.")] = False,
    ttl: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How long --retain lasts, as 90s, 30min or 6h; a day at most."),
    ] = "30min",
    page: Annotated[
        bool, typer.Option("--page", help="The keys are those of pages (SGLang's hash).")
    ] = False,
    fingerprint: Annotated[
        bool, typer.Option("--fingerprint", help="The keys are fingerprints, as in the journal.")
    ] = False,
    pool: Annotated[int, typer.Option(min=0, max=POOL_STRING - 1, help="Pool of the pages.")] = POOL_KV,
    shard: Annotated[str, typer.Option(metavar=SHARD_METAVAR, help=SHARD_HELP, show_default=False)] = "",
    json: JsonOption = False,
) -> None:
    """Say which objects go last, and which first, when a segment runs out of space.

    Example:  kvstore admin keep prompts system/assistant --retain --ttl 6h

    Example:  kvstore admin keep Llama-3.1-8B --all --demote

    A hint to the segments, kept in their memory: it ends with its time, with the object, and with a restart of the segment.
    What is retained takes its part of a budget, of the whole segment and of each namespace (retained_fraction_max,
    retained_namespace_fraction_max); what is over it is a hint only, and is said as refused. `namespaces` shows what is
    retained, and the budget.

    Exit code 1: no segment has any of it, or all of it was refused; 4: a segment has not answered.
    """
    intent = _intent(retain=retain, demote=demote, normal=normal)
    if every == bool(keys):
        fail("name keys, or say --all: one of the two", code=EXIT_USAGE)
    if len(keys or []) > KEYS_MAX:
        fail(f"at most {KEYS_MAX} keys a call: cut the list", code=EXIT_USAGE)
    ttl_ms = _ttl_ms(ttl)
    wanted = [
        key_of(each, page=page, is_fingerprint=fingerprint, pool=pool, shard=shard) for each in keys or []
    ]
    view, kept = exchange(settings, lambda cluster: _keep(cluster, namespace, wanted, intent, ttl_ms))
    result = _result(view, intent, ttl_ms, kept)
    if json:
        print_json(result)
    else:
        _print(view, intent, result)
    if kept.silent:
        lines = [printable(f"segment {each.address}: {each.why}") for each in kept.silent]
        fail("not everywhere: some segments were not told", *lines, code=EXIT_UNCONFIRMED)
    if result["kept"] == 0:
        raise typer.Exit(EXIT_FAILED)


def _intent(*, retain: bool, demote: bool, normal: bool) -> Keep:
    chosen = [
        intent
        for intent, said in ((Keep.RETAIN, retain), (Keep.DEMOTE, demote), (Keep.NORMAL, normal))
        if said
    ]
    if len(chosen) != 1:
        fail("say one of --retain, --demote and --normal", code=EXIT_USAGE)
    return chosen[0]


def _ttl_ms(text: str) -> int:
    try:
        ttl_ms = parse_duration_ms(text)
    except ValueError as error:
        fail(f"--ttl: {error}", code=EXIT_USAGE)
    if not 0 < ttl_ms <= KEEP_TTL_MS_MAX:
        fail(f"--ttl: {text!r} is not between 1 ms and a day: say --retain again later", code=EXIT_USAGE)
    return ttl_ms


async def _keep(
    cluster: Cluster, namespace: str, keys: list[KeyOf], intent: Keep, ttl_ms: int
) -> tuple[View, Any]:
    there = [
        namespace_view(each) for each in await listed(cluster, "ListNamespaces", pb.ListNamespacesRequest())
    ]
    view = select_namespace(there, namespace)
    ns = bytes.fromhex(view["id"])
    request = pb.KeepObjectsRequest(
        id=ns,
        fingerprints=b"".join(key.fingerprint(ns) for key in keys),
        all=not keys,
        intent=intent,
        ttl_ms=ttl_ms if intent is Keep.RETAIN else 0,
    )

    async def ask(call: Any) -> Any:
        return await call("KeepObjects", request)

    return view, await cluster.change(ask)


def _result(view: View, intent: Keep, ttl_ms: int, kept: Any) -> View:
    return {
        "namespace": {name: view[name] for name in ("id", "name", "epoch")},
        "intent": intent.name.lower(),
        "ttl_ms": ttl_ms if intent is Keep.RETAIN else None,
        "kept": sum(each.kept for each in kept.segments),
        "refused": sum(each.refused for each in kept.segments),
        "segments": [
            {"index": each.index, "address": each.address, "kept": each.kept, "refused": each.refused}
            for each in kept.segments
        ],
        "silent": [{"address": each.address, "why": each.why} for each in kept.silent],
    }


def _print(view: View, intent: Keep, result: View) -> None:
    print(f"{counted(result['kept'], 'object')} of {describe_namespace(view)}: {_DONE[intent]}")
    rows = [
        (each["index"], each["address"], each["kept"], each["refused"])
        for each in result["segments"]
        if each["kept"] or each["refused"]
    ]
    if rows:
        print_table(("SEGMENT>", "ADDRESS", "KEPT>", "REFUSED>"), rows)
    if result["refused"]:
        why = (
            "over the budget of what may be retained (`kvstore admin namespaces` shows it): retain less, or raise "
            "retained_namespace_fraction_max and retained_fraction_max of the segments"
            if intent is Keep.RETAIN
            else "demotions of this namespace have mostly been wrong lately, and are not heeded"
        )
        print(f"{counted(result['refused'], 'object')} refused: {why}", file=sys.stderr)
    if not result["kept"] and not result["refused"] and not result["silent"]:
        print("no segment has any of it; keys of pages need --page, and the --shard", file=sys.stderr)
