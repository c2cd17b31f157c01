"""An address that clients can't reach is found out: by the master that sees where a segment is, and by `admin status`."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore.cli.admin.reach import Target, unreachable
from kvstore_client._native import DataServer, SegmentStore
from kvstore_client.address import Address
from support.network_lab import NetworkLab, network_lab
from support.processes import ServerProcess

HUB, MASTER, SEGMENT = "hub", "master", "segment"
STEP_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def lab() -> Iterator[NetworkLab]:
    # A short name: a unix socket's path has at most 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="kv-"))
    with network_lab(HUB, (MASTER, SEGMENT), directory / "run") as running:
        yield running
    shutil.rmtree(directory)


class Store:
    """A master and a segment on a host each."""

    def __init__(self, lab: NetworkLab, directory: Path) -> None:
        self._lab = lab
        self._directory = directory
        self._servers: list[ServerProcess] = []
        self.master = self._start(
            MASTER,
            "--host=0.0.0.0",
            "--directory-port=0",
            "--control-port=0",
            "--http-port=0",
            f"--metadata=rocksdb://{directory}/master",
        )
        ports = self.master.wait_event("listening")
        self.control = str(Address(lab.hosts[MASTER].address, ports["control_port"]))

    def start_segment(self, *options: str) -> int:
        segment = self._start(
            SEGMENT,
            f"--masters={self.control}",
            "--port=0",
            "--http-port=-1",
            "--capacity=16MiB",
            "--unix-path=off",
            f"--data-dir={self._directory}/segment",
            *options,
        )
        segment.wait_event("attached")
        return int(segment.wait_event("listening")["port"])

    def admin(self, *arguments: str, host: str = HUB) -> dict[str, Any]:
        command = [sys.executable, "-m", "kvstore.cli.main", "admin", *arguments, f"--master={self.control}"]
        ended = subprocess.run(
            [*self._lab.hosts[host].enter, *command, "--json"],
            capture_output=True,
            text=True,
            timeout=STEP_TIMEOUT_S,
        )
        assert ended.returncode == 0, ended.stderr
        shown: dict[str, Any] = json.loads(ended.stdout)
        return shown

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def _start(self, name: str, *arguments: str) -> ServerProcess:
        log = self._directory / f"{name}.log"
        self._servers.append(ServerProcess([name, *arguments], log, enter=self._lab.hosts[name].enter))
        return self._servers[-1]


@pytest.fixture
def store(lab: NetworkLab, tmp_path: Path) -> Iterator[Store]:
    running = Store(lab, tmp_path)
    yield running
    running.close()


def test_a_store_that_clients_can_reach_is_healthy(store: Store) -> None:
    store.start_segment("--host=0.0.0.0")
    shown = store.admin("status")
    assert (shown["problems"], shown["unreachable"]) == ([], [])


def test_a_segment_that_advertises_loopback_from_another_host_is_named_by_its_master(
    store: Store, lab: NetworkLab
) -> None:
    port = store.start_segment("--host=0.0.0.0", "--advertise-host=127.0.0.1")
    home = lab.hosts[SEGMENT].address
    assert '"event": "segment_unreachable"' in store.master.log()
    (segment,) = store.admin("segments")["segments"]
    assert segment["attached_from"] == home
    assert "--advertise-host" in segment["address_doubt"]
    # On its own host it can be reached where it says, and yet the master knows better.
    for host, out_of_reach in ((HUB, ["segment 0"]), (SEGMENT, [])):
        shown = store.admin("status", host=host)
        said = " ".join(shown["problems"])
        assert f"127.0.0.1:{port}" in said and home in said and "--advertise-host" in said
        assert [one["what"] for one in shown["unreachable"]] == out_of_reach


def test_a_port_that_is_closed_to_clients_is_found_by_status_and_by_nobody_else(
    store: Store, lab: NetworkLab
) -> None:
    home = lab.hosts[SEGMENT].address
    port = store.start_segment("--host=127.0.0.1", f"--advertise-host={home}")
    shown = store.admin("status")
    assert shown["unreachable"] == [
        {"what": "segment 0", "address": f"{home}:{port}", "why": "connection refused"}
    ]
    assert not shown["healthy"] and f"segment 0 at {home}:{port} (connection refused)" in shown["problems"][0]
    blind = store.admin("status", "--no-reach")
    assert (blind["healthy"], blind["unreachable"]) == (True, None)
    # It listens on 0.0.0.0, which is no address that anybody could go to.
    assert blind["leader"] == store.control


def test_a_host_that_is_cut_off_from_clients_is_found_in_time(store: Store, lab: NetworkLab) -> None:
    port = store.start_segment("--host=0.0.0.0")
    lab.cut(SEGMENT)
    try:
        (cut_off,) = store.admin("status")["unreachable"]
    finally:
        lab.heal(SEGMENT)
    assert cut_off["address"] == f"{lab.hosts[SEGMENT].address}:{port}"


async def test_whoever_else_answers_is_told_apart(tmp_path: Path) -> None:
    store = SegmentStore(capacity_bytes=16 << 20, pool_id=b"p" * 16)
    server = DataServer(store, tcp_host="127.0.0.1", tokens=["right"])
    stranger = await asyncio.start_server(_talk_nonsense, "127.0.0.1", 0)
    mute = socket.create_server(("127.0.0.1", 0))
    try:
        ours = Address("127.0.0.1", server.tcp_port)
        expected = {
            Target("itself", ours, b"p" * 16, "right"): "",
            Target("another pool", ours, b"q" * 16, "right"): "another server answers there",
            Target("stranger", Address(*stranger.sockets[0].getsockname())): "something else than kvstore",
            Target("mute", Address(*mute.getsockname())): "no answer within",
            Target("no such name", Address("no-such-name.invalid", 7450)): "the name is not found here",
        }
        found = dict(await unreachable(list(expected), STEP_TIMEOUT_S))
        for target, reason in expected.items():
            assert found.get(target, "").startswith(reason), target
            assert (target in found) == bool(reason), target
        # It can be reached, and clients may have other tokens than the operator.
        wrong = Target("itself", ours, token="another")
        assert await unreachable([wrong], STEP_TIMEOUT_S) == [] and server.stats()["unauthorized"] == 1
        # A look without a token guesses nothing: no reason to be alarmed.
        assert await unreachable([Target("itself", ours)], STEP_TIMEOUT_S) == []
        assert server.stats()["unauthorized"] == 1
    finally:
        mute.close()
        stranger.close()
        server.stop()
        store.close()


async def _talk_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 8)
    writer.close()
