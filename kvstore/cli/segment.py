"""`kvstore segment`: one segment server in the foreground."""

from __future__ import annotations

import asyncio

import typer
import uvloop

from kvstore.cli.child_process import JsonOption, ParentOption, announce, die_with_parent
from kvstore.cli.errors import fail
from kvstore.cli.settings_options import with_settings_options
from kvstore.common.config.segment import SegmentSettings
from kvstore.common.errors import CoreTaskEnded
from kvstore.segment.errors import PoolLost, SegmentStartError
from kvstore.segment.run import run
from kvstore.segment.server import SegmentServer


def register(app: typer.Typer) -> None:
    app.command("segment")(with_settings_options(SegmentSettings, segment))


def segment(settings: SegmentSettings, json: JsonOption = False, parent_pid: ParentOption = 0) -> None:
    """Serve memory of this node to the store: one segment a node.

    Example:  kvstore segment --masters master-0:7441,master-1:7441 --capacity 64GiB --host 0.0.0.0

    It serves reads without a master and looks for one for ever; SIGTERM makes it say goodbye and stop.
    """
    die_with_parent(parent_pid)
    tasks: list[asyncio.Task[None]] = []

    def on_listening(server: SegmentServer) -> None:
        if json:
            while tasks:
                tasks.pop().cancel()  # of the pool before, if this is not the first
            tasks.append(asyncio.get_running_loop().create_task(_announce(server)))

    try:
        uvloop.run(run(settings, on_listening))
    except (SegmentStartError, CoreTaskEnded, PoolLost) as error:
        fail(str(error))


async def _announce(server: SegmentServer) -> None:
    where = server.addresses
    announce(
        "listening",
        segment_id=server.segment_id.hex(),
        pool_id=server.pool_id.hex(),
        capacity_bytes=server.store.stats()["capacity_bytes"],
        host=where.host,
        port=where.port,
        advertise_host=where.advertise_host,
        unix_path=where.unix_path,
        http_port=where.http_port,
    )
    while not await server.wait_attached(timeout_s=60.0):
        pass
    announce("attached", master=server.control.master)
