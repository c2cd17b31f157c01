"""`kvstore admin status`: is the store well, and who leads."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from kvstore.cli.admin.cluster import Cluster, MasterView, exchange, listed
from kvstore.cli.admin.failures import EXIT_UNREACHABLE, AdminFailure
from kvstore.cli.admin.output import (
    UNKNOWN,
    JsonOption,
    count,
    counted,
    duration,
    print_facts,
    print_json,
    print_table,
    printable,
    size,
)
from kvstore.cli.admin.reach import Target, unreachable
from kvstore.cli.admin.views import View, known, role_name
from kvstore.cli.errors import EXIT_FAILED, fail
from kvstore.cli.settings_options import with_settings_options
from kvstore.common.config.admin import AdminSettings
from kvstore.v1 import admin_pb2 as pb
from kvstore_client.address import Address
from kvstore_client.protocol import SegmentState
from kvstore_client.tokens import TokenRole

SEGMENT_STATES = ("live", "suspect", "draining", "gone")
NAMED_MAX = 5
OutOfReach = list[tuple[Target, str]]


def register(app: typer.Typer) -> None:
    app.command("status")(with_settings_options(AdminSettings, status))


ReachOption = Annotated[
    bool,
    typer.Option(
        "--reach/--no-reach",
        help="Try from here what clients use: the masters' and the segments' ports for them.",
    ),
]


def status(settings: AdminSettings, json: JsonOption = False, reach: ReachOption = True) -> None:
    """Say whether the store is well, who leads, how full it is. The first line is `healthy`, or `degraded: WHY`.

    Example:  kvstore admin status --master master-0:7441,master-1:7441,master-2:7441

    Name all masters: then one that is down is told. What clients use is tried from where the command runs, at the addresses that
    clients are told: run it where clients run, or with --no-reach. Exit code 0 as long as one answers, degraded or not.
    """
    masters, out_of_reach = exchange(settings, lambda cluster: _look(cluster, settings, reach))
    if not any(master.status is not None for master in masters):
        named = "; ".join(f"{master.address}: {master.problem}" for master in masters)
        if all(master.unreachable for master in masters):
            fail(
                f"no master answers: {named}. Say where one is with --master HOST:7441", code=EXIT_UNREACHABLE
            )
        fail(f"refused by {named}", code=EXIT_FAILED)
    view = cluster_view(masters, out_of_reach)
    if json:
        print_json(view)
    else:
        _print(view)


async def _look(
    cluster: Cluster, settings: AdminSettings, reach: bool
) -> tuple[list[MasterView], OutOfReach | None]:
    """The masters, and which ports clients here could not use; None: not tried."""
    masters = await cluster.survey()
    if not reach or not any(master.serves for master in masters):
        return masters, None
    tokens = settings.tokens
    targets = [
        Target(
            "master",
            Address(Address.parse(master.address).host, master.status.directory_port),
            token=tokens.to_present(TokenRole.ADMIN),
        )
        for master in masters
        if master.status is not None and master.status.directory_port
    ]
    with contextlib.suppress(AdminFailure):  # what is wrong with the masters is said by their own views
        targets += [
            Target(
                f"segment {segment.index}",
                Address(segment.host, segment.tcp_port),
                segment.pool_id,
                tokens.to_present(TokenRole.ENGINE),
            )
            for segment in await listed(cluster, "ListSegments", pb.ListSegmentsRequest())
            if segment.state in (SegmentState.LIVE, SegmentState.DRAINING)
        ]
    return masters, await unreachable(targets, settings.timeout_ms / 1000)


def cluster_view(masters: list[MasterView], out_of_reach: OutOfReach | None = None) -> View:
    """What `--json` prints: the cluster as the leader sees it, or while there is none a standby."""
    answered = [master for master in masters if master.status is not None]
    best = max(answered, key=lambda master: (master.status.role, master.status.term))
    said = best.status
    problems = _problems(masters, best) + _reach_problems(out_of_reach or [])
    return {
        "healthy": not problems,
        "problems": problems,
        "answered_by": best.address,
        "cluster_id": said.cluster_id.hex() or None,
        "leader": said.leader_address or None,
        "term": said.term or None,
        "map_epoch": said.map_epoch,
        "metadata": {
            "kind": said.metadata_kind,
            "space": known(said, "metadata_space"),
            "text": said.metadata_text,
            "used_bytes": known(said, "metadata_bytes"),
        },
        "commit_backlog_bytes": known(said, "commit_backlog_bytes"),
        "segments": {state: getattr(said.segments, state) for state in SEGMENT_STATES},
        "capacity_bytes": said.capacity_bytes,
        "used_bytes": said.used_bytes,
        "pinned_bytes": known(said, "pinned_bytes"),
        "object_count": said.object_count,
        "namespace_count": said.namespace_count,
        "retired_object_count": said.retired_object_count,
        "retired_bytes": said.retired_bytes,
        "unreachable": None
        if out_of_reach is None
        else [{"what": at.what, "address": str(at.address), "why": why} for at, why in out_of_reach],
        "masters": [_master_view(master) for master in masters],
    }


def _master_view(master: MasterView) -> View:
    said = master.status
    return {
        "address": master.address,
        "role": role_name(said.role) if said is not None else None,
        "version": said.software_version if said is not None else None,
        "uptime_ms": said.uptime_ms if said is not None else None,
        "lag_revisions": known(said, "lag_revisions") if said is not None else None,
        "problem": master.problem or None,
    }


def _problems(masters: list[MasterView], best: MasterView) -> list[str]:
    problems = []
    if not any(master.leads for master in masters):
        problems.append("no master leads: nothing can be written until one does")
    problems += best.status.problems
    for master in masters:
        if master.status is None:
            problems.append(f"master {master.address} does not answer: {master.problem}")
        elif master is not best:
            problems += [f"master {master.address}: {problem}" for problem in master.status.problems]
    clusters = {m.status.cluster_id.hex() for m in masters if m.status is not None and m.status.cluster_id}
    if len(clusters) > 1:
        problems.append(f"these masters are of different clusters: {', '.join(sorted(clusters))}")
    leaders = [master.address for master in masters if master.leads]
    if len(leaders) > 1:
        problems.append(
            f"several masters say that they lead, one of them does not know better yet: {leaders}"
        )
    return problems


def _reach_problems(out_of_reach: OutOfReach) -> list[str]:
    if not out_of_reach:
        return []
    named = ", ".join(f"{at.what} at {at.address} ({why})" for at, why in out_of_reach[:NAMED_MAX])
    more = f" and {len(out_of_reach) - NAMED_MAX} more" if len(out_of_reach) > NAMED_MAX else ""
    return [
        f"clients here can't use {named}{more}: is something in between that closes the port (firewall, network "
        "policy), is the --advertise-host right?"
    ]


def _print(view: View) -> None:
    problems = "; ".join(printable(problem) for problem in view["problems"])
    print(f"degraded: {problems}" if problems else "healthy")
    metadata, states = view["metadata"], view["segments"]
    space = metadata["space"] or "not measured by a standby"
    share = f" ({100 * view['used_bytes'] / view['capacity_bytes']:.0f} %)" if view["capacity_bytes"] else ""
    print_facts(
        [
            ("cluster", view["cluster_id"] or UNKNOWN),
            (
                "leader",
                f"{view['leader'] or 'none'}, term {count(view['term'])}, map epoch {view['map_epoch']}",
            ),
            (
                "metadata",
                f"{metadata['kind']}, space {space}, {size(metadata['used_bytes'])}"
                + (f" ({metadata['text']})" if metadata["text"] else ""),
            ),
            ("commits", f"{size(view['commit_backlog_bytes'])} wait"),
            ("segments", ", ".join(f"{states[state]} {state}" for state in SEGMENT_STATES)),
            (
                "pool",
                f"{size(view['used_bytes'])} of {size(view['capacity_bytes'])} used{share}, "
                f"{size(view['pinned_bytes'])} pinned",
            ),
            ("objects", _objects(view)),
        ]
    )
    print()
    rows = [
        (
            master["address"],
            master["role"] or "no answer",
            duration(master["uptime_ms"]),
            UNKNOWN if master["lag_revisions"] is None else f"{master['lag_revisions']} commits",
            master["version"] or UNKNOWN,
        )
        for master in view["masters"]
    ]
    print_table(("MASTER", "ROLE", "UP>", "BEHIND>", "VERSION"), rows)


def _objects(view: View) -> str:
    text = f"{view['object_count']} in {counted(view['namespace_count'], 'namespace')}"
    if view["retired_object_count"]:
        text += f"; {view['retired_object_count']} of them cleared, not evicted yet ({size(view['retired_bytes'])})"
    return text
