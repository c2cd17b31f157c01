"""A store that listens on all interfaces tells others an address that leads to it from their own host."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import engine_worker
from support.network_lab import LabHost, NetworkLab, network_lab
from support.processes import ServerProcess

STORE, ENGINE, HUB = "store", "engine", "hub"
PAGES = 8
PAGE_BYTES = 64 << 10
STEP_TIMEOUT_S = 60.0
FREE_PORTS = (
    "--directory-port=0",
    "--control-port=0",
    "--data-port=0",
    "--http-port=0",
    "--master-http-port=0",
)


@pytest.fixture(scope="module")
def private() -> Iterator[Path]:
    # A short name: a unix socket's path has at most 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="kv-"))
    yield directory / "run"
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def lab(private: Path) -> Iterator[NetworkLab]:
    with network_lab(HUB, (STORE, ENGINE), private) as running:
        yield running


@pytest.fixture
def up(lab: NetworkLab, private: Path, tmp_path: Path) -> Iterator[Any]:
    """Starts `kvstore up --host 0.0.0.0` on the store's host; its summary."""
    servers: list[ServerProcess] = []

    def start(*options: str) -> dict[str, Any]:
        arguments = ["up", "--host=0.0.0.0", "--size=32MiB", f"--data-dir={tmp_path}", *FREE_PORTS, *options]
        environment = {"XDG_RUNTIME_DIR": str(private)}
        servers.append(ServerProcess(arguments, tmp_path / "up.log", environment, lab.hosts[STORE].enter))
        return servers[-1].wait_event("up", STEP_TIMEOUT_S)

    yield start
    for server in servers:
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(STEP_TIMEOUT_S)
        server.close()


def advertised(host: LabHost | None, bind: str, peer: str = "") -> str:
    """What a server on `host` (None: one with nothing but loopback) that listens on `bind` calls itself."""
    enter = host.enter if host is not None else ("unshare", "--net", "--map-root-user", "--user", "--")
    ask = "import sys; from kvstore.common.advertised_host import *; print(advertised_host(*sys.argv[1:]))"
    command = [*enter, sys.executable, "-c", ask, bind, peer]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=STEP_TIMEOUT_S)
    return ended.stdout.strip() or ended.stderr.strip().splitlines()[-1]


def engine(lab: NetworkLab, masters: str, action: str) -> dict[str, Any]:
    words = (json.dumps({"masters": masters}), action, "0", str(PAGES), str(PAGE_BYTES))
    ended = subprocess.run(
        [*lab.hosts[ENGINE].enter, sys.executable, engine_worker.__file__, *words],
        capture_output=True,
        text=True,
        timeout=STEP_TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def test_up_on_all_interfaces_prints_flags_by_which_an_engine_elsewhere_puts_and_gets(
    up: Any, lab: NetworkLab
) -> None:
    summary = up()
    masters = json.loads(shlex.split(summary["sglang_flags"])[-1])["masters"]
    assert masters == summary["masters"]
    assert masters.split(":")[0] == summary["segment"]["advertise_host"] == lab.hosts[STORE].address
    written = engine(lab, masters, "put")
    assert (written["good"], written["stats"]["transport_tcp_bytes_put"]) == (PAGES, PAGES * PAGE_BYTES)
    read = engine(lab, masters, "get")
    assert (read["good"], read["different"]) == (PAGES, 0)
    assert read["stats"]["transport_tcp_bytes_get"] == PAGES * PAGE_BYTES


def test_the_address_that_the_operator_names_is_told_to_all(up: Any) -> None:
    summary = up("--advertise-host=kv.example")
    assert summary["health"].startswith("ok")
    assert summary["segment"]["advertise_host"] == "kv.example"
    for told in ("masters", "control"):
        assert summary[told].startswith("kv.example:")


def test_a_segment_whose_master_is_on_its_own_host_is_told_by_an_address_that_leads_to_it(
    lab: NetworkLab, tmp_path: Path
) -> None:
    options = ["--host=0.0.0.0", "--port=0", "--http-port=-1", "--capacity=16MiB", "--unix-path=off"]
    arguments = ["segment", "--masters=127.0.0.1:7441", f"--data-dir={tmp_path}", *options]
    server = ServerProcess(arguments, tmp_path / "segment.log", enter=lab.hosts[STORE].enter)
    try:
        assert server.wait_event("listening")["advertise_host"] == lab.hosts[STORE].address
    finally:
        server.close()


@pytest.mark.parametrize("peer", ["", "127.0.0.1:7441", "localhost:7441", "10.77.2.1:7441"])
def test_a_wildcard_is_told_as_the_address_of_the_interface_that_leads_out(
    lab: NetworkLab, peer: str
) -> None:
    assert advertised(lab.hosts[STORE], "0.0.0.0", peer) == lab.hosts[STORE].address
    assert advertised(lab.hosts[STORE], "::", peer) == lab.hosts[STORE].address


def test_of_several_interfaces_the_one_that_leads_to_the_peer_is_told(lab: NetworkLab) -> None:
    assert advertised(lab.hosts[HUB], "0.0.0.0", f"{lab.hosts[ENGINE].address}:7441") == "10.77.2.1"
    # No default route there: any interface is better than none.
    assert advertised(lab.hosts[HUB], "0.0.0.0") in ("10.77.1.1", "10.77.2.1")


def test_a_host_that_was_named_is_told_as_it_is(lab: NetworkLab) -> None:
    assert advertised(lab.hosts[STORE], "127.0.0.1", "10.77.2.1:7441") == "127.0.0.1"


def test_loopback_alone_is_refused_with_the_two_ways_out() -> None:
    refused = advertised(None, "0.0.0.0", "127.0.0.1:7441")
    assert "--advertise-host" in refused and "--host 127.0.0.1" in refused
    assert os.linesep not in refused
