"""`kvstore up`: a whole store on this machine, one master and one segment, by one command."""

from __future__ import annotations

import asyncio
import json as json_module
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
from rich.console import Console

from kvstore.cli.child_process import ParentOption, die_with_parent
from kvstore.cli.errors import fail
from kvstore.cli.self_test import run_self_test
from kvstore.cli.sglang_flags import LAYOUT_FLAGS, as_shell, sglang_flags
from kvstore.cli.supervisor import Announcement, ChildFailed, ChildSpec, Supervisor
from kvstore.common.advertised_host import NoAddressToAdvertise, advertised_host
from kvstore.common.capacity import CapacityError, capacity_of
from kvstore.common.sizes import format_size
from kvstore.segment.config import DATA_PORT, HTTP_PORT, default_data_dir
from kvstore_client.address import CONTROL_PORT, DIRECTORY_PORT, Address, is_wildcard

MASTER_START_TIMEOUT_S = 30.0
SEGMENT_START_TIMEOUT_S = 30.0
# Touching a pool for the first time takes about a second for 1-2 GiB on slow machines.
SEGMENT_START_TIMEOUT_S_PER_GIB = 2.0


@dataclass
class UpOptions:
    """What `kvstore up` was asked for."""

    size: str
    data_dir: Path
    host: str
    # What processes elsewhere reach this machine at.
    advertise_host: str
    directory_port: int
    control_port: int
    data_port: int
    http_port: int
    master_http_port: int
    token: str
    token_file: str
    log_level: str
    json: bool


@dataclass
class Addresses:
    """Ports as the children bound them; a restarted child is told the same ones."""

    master: Announcement = field(default_factory=dict)
    segment: Announcement = field(default_factory=dict)


def register(app: typer.Typer) -> None:
    app.command("up")(up)


def up(
    size: Annotated[
        str, typer.Option(help="Memory for pages, e.g. 8GiB; 'auto' takes a quarter of what is free.")
    ] = "auto",
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where the directory's records live.", show_default="~/.local/state/kvstore"),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for all interfaces.")
    ] = "127.0.0.1",
    advertise_host: Annotated[
        str,
        typer.Option(
            help="Address that clients and segments elsewhere reach this machine at; by default --host, or if that is "
            "0.0.0.0 the address of the interface that leads out of this machine."
        ),
    ] = "",
    directory_port: Annotated[
        int, typer.Option(help="Directory port, the one that SGLang needs; 0: a free one.")
    ] = DIRECTORY_PORT,
    control_port: Annotated[
        int, typer.Option(help="Control port for further segments; 0: a free one.")
    ] = CONTROL_PORT,
    data_port: Annotated[int, typer.Option(help="Data port of the segment; 0: a free one.")] = DATA_PORT,
    http_port: Annotated[
        int, typer.Option(help="The segment's /metrics; 0: a free one, -1: none.")
    ] = HTTP_PORT,
    master_http_port: Annotated[int, typer.Option(help="The master's /metrics; 0: a free one.")] = 7442,
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="KVSTORE_TOKEN_FILE",
            help="File with the secret that clients must present; without it none is asked for.",
            show_default=False,
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
    json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON instead of text for people.")
    ] = False,
    parent_pid: ParentOption = 0,
) -> None:
    """Run a whole store on this machine: one master, one segment, and the SGLang flags to paste.

    Example:  kvstore up --size 8GiB

    Ctrl-C stops it. The directory survives a restart; the pages are in memory and do not.
    """
    die_with_parent(parent_pid)
    try:
        advertise_host = advertise_host or advertised_host(host)
    except NoAddressToAdvertise as error:
        fail(str(error))
    options = UpOptions(
        size=size,
        data_dir=data_dir or default_data_dir(),
        host=host,
        advertise_host=advertise_host,
        directory_port=directory_port,
        control_port=control_port,
        data_port=data_port,
        http_port=http_port,
        master_http_port=master_http_port,
        token=_read_token(token_file),
        token_file=str(token_file.resolve()) if token_file else "",
        log_level=log_level,
        json=json,
    )
    try:
        # Said here, before anything is started, and once for all restarts: 'auto' must not shrink with each
        # of them.
        capacity_bytes = capacity_of(options.size)
        asyncio.run(_run(options, capacity_bytes))
    except (CapacityError, ChildFailed) as error:
        fail(str(error))
    except ValueError as error:
        fail(f"--size: {error}")


async def _run(options: UpOptions, capacity_bytes: int) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopping.set)
    if options.token:
        # By the environment, not by arguments that every user of the machine can read.
        os.environ["KVSTORE_MASTER_TOKEN"] = os.environ["KVSTORE_SEGMENT_TOKEN"] = options.token
    addresses = Addresses()
    supervisor = Supervisor(lambda text: console.print(f"kvstore: {text}", markup=False))
    starting = asyncio.create_task(_start(options, capacity_bytes, addresses, supervisor, console))
    stopped = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            await stopped
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await supervisor.stop()
        stopped.cancel()
    console.print("kvstore: stopped", markup=False)


async def _start(
    options: UpOptions, capacity_bytes: int, addresses: Addresses, supervisor: Supervisor, console: Console
) -> None:
    master = ChildSpec(
        name="master",
        arguments=lambda: _master_arguments(options, addresses.master),
        ready_event="listening",
        on_event=addresses.master.update,
    )
    segment = ChildSpec(
        name="segment",
        arguments=lambda: _segment_arguments(options, capacity_bytes, addresses),
        ready_event="attached",
        on_event=addresses.segment.update,
    )
    with console.status("starting the master ..."):
        await supervisor.start_child(master, MASTER_START_TIMEOUT_S)
    timeout_s = SEGMENT_START_TIMEOUT_S + SEGMENT_START_TIMEOUT_S_PER_GIB * (capacity_bytes >> 30)
    with console.status(f"starting the segment, touching {format_size(capacity_bytes)} of memory ..."):
        await supervisor.start_child(segment, timeout_s)
    directory = _local_address(options.host, addresses.master["directory_port"])
    health = await asyncio.to_thread(run_self_test, directory, options.token)
    directory = str(Address(options.advertise_host, addresses.master["directory_port"]))
    if options.json:
        print(json_module.dumps(_summary(options, addresses, supervisor, directory, health)), flush=True)
    else:
        _print_welcome(options, capacity_bytes, addresses, directory, health)


def _summary(
    options: UpOptions, addresses: Addresses, supervisor: Supervisor, directory: str, health: str
) -> dict[str, object]:
    return {
        "event": "up",
        "masters": directory,
        "control": str(Address(options.advertise_host, addresses.master["control_port"])),
        "master": addresses.master,
        "segment": addresses.segment,
        "pids": {child.spec.name: child.pid for child in supervisor.children},
        "health": health,
        "sglang_flags": as_shell(sglang_flags(directory, options.token_file)),
        "layout_flags": as_shell(list(LAYOUT_FLAGS)),
    }


def _print_welcome(
    options: UpOptions, capacity_bytes: int, addresses: Addresses, directory: str, health: str
) -> None:
    master, segment = addresses.master, addresses.segment
    control = str(Address(options.advertise_host, master["control_port"]))
    lines = [
        f"kvstore is up: {format_size(capacity_bytes)} for pages",
        "",
        f"  directory   {directory}",
        f"  control     {control}   (another segment: kvstore segment --masters {control} --port 0 "
        "--data-dir DIR)",
        f"  data        {Address(options.advertise_host, segment['port'])!s}   {segment['unix_path']}",
        f"  look        {as_shell(_admin_command(options, control))}",
        f"  metrics     {_metrics('segment', '127.0.0.1', segment)} "
        f"{_metrics('master', options.host, master)}".rstrip(),
        f"  data dir    {options.data_dir}",
        f"  health      {health}",
        "",
        "Start SGLang with:",
        "",
        f"  {as_shell(sglang_flags(directory, options.token_file))}",
        "",
        f"and best with: {as_shell(list(LAYOUT_FLAGS))}",
        "",
        "Ctrl-C stops the store.",
    ]
    print("\n".join(lines), file=sys.stdout, flush=True)


def _read_token(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"--token-file {path} can't be read: {error}")
    if not token:
        fail(f"--token-file {path} is empty: write the secret into it")
    return token


def _admin_command(options: UpOptions, control: str) -> list[str]:
    """Shows how this store is."""
    token = ["--token-file", options.token_file] if options.token_file else []
    return ["kvstore", "admin", "status", "--master", control, *token]


def _metrics(name: str, host: str, announcement: Announcement) -> str:
    port = int(announcement.get("http_port", -1))
    return f"http://{_local_address(host, port)}/metrics ({name})" if port >= 0 else ""


def _local_address(host: str, port: int) -> str:
    """Where processes on this machine reach a server that listens on `host`."""
    if is_wildcard(host):
        host = "::1" if host == "::" else "127.0.0.1"
    return str(Address(host, port))


def _master_arguments(options: UpOptions, bound: Announcement) -> list[str]:
    return [
        "master",
        f"--host={options.host}",
        f"--advertise-host={options.advertise_host}",
        f"--directory-port={bound.get('directory_port', options.directory_port)}",
        f"--control-port={bound.get('control_port', options.control_port)}",
        f"--http-port={bound.get('http_port', options.master_http_port)}",
        f"--metadata=rocksdb://{quote(str(options.data_dir.resolve() / 'master'))}",
        f"--log-level={options.log_level}",
        "--log-format=text",
    ]


def _segment_arguments(options: UpOptions, capacity_bytes: int, addresses: Addresses) -> list[str]:
    bound = addresses.segment
    return [
        "segment",
        f"--masters={_local_address(options.host, addresses.master['control_port'])}",
        f"--capacity={capacity_bytes}",
        f"--host={options.host}",
        f"--advertise-host={options.advertise_host}",
        f"--port={bound.get('port', options.data_port)}",
        f"--http-port={bound.get('http_port', options.http_port)}",
        f"--data-dir={options.data_dir / 'segment'}",
        f"--log-level={options.log_level}",
        "--log-format=text",
    ]
