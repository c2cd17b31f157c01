"""`kvstore up`: a whole store on this machine, one master and one segment, by one command."""

from __future__ import annotations

import asyncio
import json as json_module
import os
import signal
import sys
from dataclasses import dataclass, field
from urllib.parse import quote

import typer
from rich.console import Console

from kvstore.cli.admin.output import JsonOption
from kvstore.cli.child_process import ParentOption, die_with_parent
from kvstore.cli.errors import EXIT_USAGE, fail
from kvstore.cli.self_test import run_self_test
from kvstore.cli.settings_options import ConfigOption, load_or_fail, with_settings_options
from kvstore.cli.sglang_flags import LAYOUT_FLAGS, as_shell, sglang_flags
from kvstore.cli.supervisor import Announcement, ChildFailed, ChildSpec, Supervisor
from kvstore.common.advertised_host import NoAddressToAdvertise, advertised_host
from kvstore.common.capacity import CapacityError
from kvstore.common.config.master import MasterSettings
from kvstore.common.config.segment import SegmentSettings
from kvstore.common.config.servers import TokenSettings
from kvstore.common.config.up import UpSettings
from kvstore.common.logs import tell
from kvstore.common.sizes import format_size
from kvstore.segment.pool_place import capacity_at, kept_pool
from kvstore_client.address import Address, is_wildcard
from kvstore_client.tokens import check_token, read_secret

MASTER_START_TIMEOUT_S = 30.0
SEGMENT_START_TIMEOUT_S = 30.0
# Touching a pool for the first time takes about a second for 1-2 GiB on slow machines.
SEGMENT_START_TIMEOUT_S_PER_GIB = 2.0


@dataclass
class Addresses:
    """Ports as the children bound them; a restarted child is told the same ones."""

    master: Announcement = field(default_factory=dict)
    segment: Announcement = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What was asked for, and what follows from it."""

    settings: UpSettings
    capacity_bytes: int
    # What processes elsewhere reach this machine at.
    advertise_host: str
    token: str
    config: str

    @property
    def token_file(self) -> str:
        return str(self.settings.token_file.resolve()) if self.settings.token_file else ""


def register(app: typer.Typer) -> None:
    app.command("up")(with_settings_options(UpSettings, up))


def up(
    settings: UpSettings, config: ConfigOption = "", json: JsonOption = False, parent_pid: ParentOption = 0
) -> None:
    """Run a whole store on this machine: one master, one segment, and the SGLang flags to paste.

    Example:  kvstore up --size 8GiB

    Ctrl-C stops it. The directory survives a restart; the pages are in memory and do so with --pool-path auto. What else a master and a
    segment can be told is in the configuration file or the environment (`kvstore config docs`).
    """
    die_with_parent(parent_pid)
    try:
        asyncio.run(_run(_plan(settings, config), json))
    except ChildFailed as error:
        fail(str(error))


def _plan(settings: UpSettings, config: str) -> Plan:
    """Exits with what is wrong before anything is started."""
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        fail(f"--data-dir: {settings.data_dir} can't be made ({error.strerror}): choose a writable directory")
    try:
        token = read_secret(str(settings.token_file)) if settings.token_file else ""
        # The engine reads the same file: tokens with roles are for servers that are started one by one.
        check_token(token)
    except ValueError as error:
        fail(f"--token-file: {error}", code=EXIT_USAGE)
    if not settings.token_file:
        _refuse_tokens_of_servers(config)
    try:
        return Plan(
            settings,
            # Once for all restarts: 'auto' must not shrink with each of them.
            _capacity_bytes(settings),
            settings.advertise_host or advertised_host(settings.host),
            token,
            config,
        )
    except (CapacityError, NoAddressToAdvertise) as error:
        fail(str(error))


def _capacity_bytes(settings: UpSettings) -> int:
    """A pool that has outlived the command before keeps its size."""
    kept = kept_pool(settings.data_dir / "segment") if settings.pool_path != "off" else None
    return capacity_at(settings.size, settings.data_dir / "segment", kept.path if kept is not None else None)


def _refuse_tokens_of_servers(config: str) -> None:
    """A server that asks for a token which this command does not know would refuse the self-test."""
    servers: tuple[type[TokenSettings], ...] = (MasterSettings, SegmentSettings)
    for settings_class in servers:
        loaded = load_or_fail(settings_class, {}, config)
        if loaded.settings.tokens:
            origin = loaded.origins.get("token_file") or loaded.origins["token"]
            fail(
                f"{origin}: `kvstore up` has one token for all that it starts. Put it into a file and name that with "
                "--token-file",
                code=EXIT_USAGE,
            )


async def _run(plan: Plan, json: bool) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopping.set)
    if plan.token:
        # By the environment, not by arguments that every user of the machine can read.
        for server in ("MASTER", "SEGMENT"):
            os.environ.pop(f"KVSTORE_{server}_TOKEN_FILE", None)
            os.environ[f"KVSTORE_{server}_TOKEN"] = plan.token
    addresses = Addresses()
    supervisor = Supervisor(lambda text: tell(f"kvstore: {text}"))
    starting = asyncio.create_task(_start(plan, json, addresses, supervisor, console))
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
    tell("kvstore: stopped")


async def _start(
    plan: Plan, json: bool, addresses: Addresses, supervisor: Supervisor, console: Console
) -> None:
    master = ChildSpec(
        name="master",
        arguments=lambda: _master_arguments(plan, addresses.master),
        ready_event="listening",
        on_event=addresses.master.update,
    )
    segment = ChildSpec(
        name="segment",
        arguments=lambda: _segment_arguments(plan, addresses),
        ready_event="attached",
        on_event=addresses.segment.update,
    )
    with console.status("starting the master ..."):
        await supervisor.start_child(master, MASTER_START_TIMEOUT_S)
    timeout_s = SEGMENT_START_TIMEOUT_S + SEGMENT_START_TIMEOUT_S_PER_GIB * (plan.capacity_bytes >> 30)
    with console.status(f"starting the segment, touching {format_size(plan.capacity_bytes)} of memory ..."):
        await supervisor.start_child(segment, timeout_s)
    directory = _local_address(plan.settings.host, addresses.master["directory_port"])
    health = await asyncio.to_thread(run_self_test, directory, plan.token)
    directory = str(Address(plan.advertise_host, addresses.master["directory_port"]))
    if json:
        sys.stdout.write(json_module.dumps(_summary(plan, addresses, supervisor, directory, health)) + "\n")
        sys.stdout.flush()
    else:
        _print_welcome(plan, addresses, directory, health)


def _summary(
    plan: Plan, addresses: Addresses, supervisor: Supervisor, directory: str, health: str
) -> dict[str, object]:
    return {
        "event": "up",
        "masters": directory,
        "control": str(Address(plan.advertise_host, addresses.master["control_port"])),
        "master": addresses.master,
        "segment": addresses.segment,
        "pids": {child.spec.name: child.pid for child in supervisor.children},
        "health": health,
        "sglang_flags": as_shell(sglang_flags(directory, plan.token_file)),
        "layout_flags": as_shell(list(LAYOUT_FLAGS)),
    }


def _print_welcome(plan: Plan, addresses: Addresses, directory: str, health: str) -> None:
    master, segment = addresses.master, addresses.segment
    control = str(Address(plan.advertise_host, master["control_port"]))
    lines = [
        f"kvstore is up: {format_size(plan.capacity_bytes)} for pages",
        "",
        f"  directory   {directory}",
        f"  control     {control}   (another segment: kvstore segment --masters {control} --port 0 "
        "--data-dir DIR)",
        f"  data        {Address(plan.advertise_host, segment['port'])!s}   {segment['unix_path']}",
        f"  look        {as_shell(_admin_command(plan, control))}",
        f"  metrics     {_metrics('segment', '127.0.0.1', segment)} "
        f"{_metrics('master', plan.settings.host, master)}".rstrip(),
        f"  data dir    {plan.settings.data_dir}",
        f"  health      {health}",
        "",
        "Start SGLang with:",
        "",
        f"  {as_shell(sglang_flags(directory, plan.token_file))}",
        "",
        f"and best with: {as_shell(list(LAYOUT_FLAGS))}",
        "",
        "Ctrl-C stops the store.",
    ]
    print("\n".join(lines), file=sys.stdout, flush=True)


def _admin_command(plan: Plan, control: str) -> list[str]:
    """Shows how this store is."""
    token = ["--token-file", plan.token_file] if plan.token_file else []
    return ["kvstore", "admin", "status", "--master", control, *token]


def _metrics(name: str, host: str, announcement: Announcement) -> str:
    port = int(announcement.get("http_port", -1))
    return f"http://{_local_address(host, port)}/metrics ({name})" if port >= 0 else ""


def _local_address(host: str, port: int) -> str:
    """Where processes on this machine reach a server that listens on `host`."""
    if is_wildcard(host):
        host = "::1" if host == "::" else "127.0.0.1"
    return str(Address(host, port))


def _master_arguments(plan: Plan, bound: Announcement) -> list[str]:
    settings = plan.settings
    return [
        "master",
        f"--directory-port={bound.get('directory_port', settings.directory_port)}",
        f"--control-port={bound.get('control_port', settings.control_port)}",
        f"--http-port={bound.get('http_port', settings.master_http_port)}",
        f"--metadata=rocksdb://{quote(str(settings.data_dir.resolve() / 'master'))}",
        *_server_arguments(plan),
    ]


def _segment_arguments(plan: Plan, addresses: Addresses) -> list[str]:
    settings, bound = plan.settings, addresses.segment
    return [
        "segment",
        f"--masters={_local_address(settings.host, addresses.master['control_port'])}",
        f"--capacity={plan.capacity_bytes}",
        f"--port={bound.get('port', settings.data_port)}",
        f"--http-port={bound.get('http_port', settings.http_port)}",
        f"--data-dir={settings.data_dir / 'segment'}",
        f"--pool-path={settings.pool_path}",
        *_server_arguments(plan),
    ]


def _server_arguments(plan: Plan) -> list[str]:
    return [
        f"--host={plan.settings.host}",
        f"--advertise-host={plan.advertise_host}",
        f"--log-level={plan.settings.log_level}",
        "--log-format=text",
        *([f"--config={plan.config}"] if plan.config else []),
    ]
