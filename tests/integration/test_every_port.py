"""Every port of every server serves on IPv4, on IPv6 and on both; what is advertised and printed has its brackets."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore_client import Client
from kvstore_client.address import Address
from support.processes import Cluster

V4, V6 = "127.0.0.1", "::1"
# What is listened on -> where peers on this machine reach it.
REACHED_AT = {
    V4: (V4,),
    V6: (V6,),
    "0.0.0.0": (V4,),
    "::": (V6, V4),
    "*": (V6, V4),
    "localhost": ("localhost",),
}
DEADLINE_MS = 5000


@pytest.fixture(params=REACHED_AT)
def host(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cluster(tmp_path: Path, host: str) -> Iterator[Cluster]:
    running = Cluster(tmp_path, "32MiB", host=host, reached_at=REACHED_AT[host][0])
    try:
        running.start_master()
        running.start_segment()
        yield running
    finally:
        running.close()


def admin(command: str, control: Address) -> dict[str, object]:
    arguments = [sys.executable, "-m", "kvstore.cli.main", "admin", command, f"--master={control}", "--json"]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    shown: dict[str, object] = json.loads(ended.stdout)
    return shown


def test_pages_metrics_and_tools_are_reached_on_every_address(cluster: Cluster, host: str) -> None:
    ports = cluster.master_ports
    segment = cluster.segments["segment"].wait_event("listening")
    for reached_at in REACHED_AT[host]:
        # Without the unix socket: the pages go over the data port.
        with Client(
            str(Address(reached_at, ports["directory_port"])), deadline_ms=DEADLINE_MS, same_host=False
        ) as client:
            objects = client.namespace(f"at {reached_at}")
            assert objects.put("key", b"value")
            assert objects.get("key") == b"value"
        for http_port in (ports["http_port"], segment["http_port"]):
            url = f"http://{Address(reached_at, http_port)}/readyz"
            with urllib.request.urlopen(url, timeout=10) as answer:
                assert answer.status == 200
        # Whatever the client took: these too.
        for port in (segment["port"], ports["control_port"]):
            socket.create_connection((reached_at, port), timeout=10).close()
    first = REACHED_AT[host][0]
    shown = admin("segments", Address(first, ports["control_port"]))
    (advertised,) = [one["address"] for one in shown["segments"]]  # type: ignore[attr-defined]
    assert advertised == str(Address(first, segment["port"]))


def test_a_restarted_server_gets_its_port_back_on_every_address(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "32MiB", host="::", reached_at=V6)
    try:
        first = dict(cluster.start_master().wait_event("listening"))
        assert cluster.master.stop() == 0
        assert {**cluster.start_master().wait_event("listening")} == first
    finally:
        cluster.close()
