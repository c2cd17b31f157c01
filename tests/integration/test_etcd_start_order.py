"""Masters that are there before their etcd: they say what they wait for, and go on by themselves."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore_client import Client
from support.etcd_server import Etcd, EtcdMember
from support.replicated_cluster import ReplicatedCluster
from support.waiting import BUSY_S, wait_until

NAMED_TIMEOUT_S = 45.0


class Waiting:
    """Two masters on an etcd that is not there yet."""

    def __init__(self, directory: Path, metadata: str) -> None:
        self.cluster = ReplicatedCluster(directory, metadata)
        self.masters = self.cluster.all_masters
        for master in self.masters:
            master.start()

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Of the first master's log."""
        log = self.masters[0].process.log_path.read_text(errors="replace").splitlines()
        events = [json.loads(line) for line in log if line.startswith("{")]
        return [line for line in events if line["event"] == event]

    def why(self) -> str:
        """What it says that it waits for, in the log as at /readyz."""

        def said() -> dict[str, Any] | None:
            assert self.masters[0].process.process.poll() is None, "it has given up"
            lines = self.lines("metadata_store_awaited")
            return lines[0] if lines else None

        line = wait_until(said, "the master says what it waits for", NAMED_TIMEOUT_S)
        assert line is not None and line["level"] == "warning"
        why = str(line["why"])
        readiness = self.masters[0].readiness()
        assert readiness.startswith("waiting for the metadata store: no etcd answers at"), readiness
        return why

    def healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.masters[0].http_port, timeout=2)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        finally:
            connection.close()

    def close(self) -> None:
        self.cluster.close()
        print(self.cluster.logs())


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Waiting | Etcd]]:
    things: list[Waiting | Etcd] = []
    yield things
    for each in reversed(things):
        each.close()


def test_masters_that_start_before_their_etcd_wait_and_serve_as_soon_as_it_is_there(
    tmp_path: Path, started: list[Waiting | Etcd]
) -> None:
    etcd = Etcd(tmp_path / "etcd")
    waiting = Waiting(tmp_path, etcd.uri(ttl_s=1))
    started += [etcd, waiting]
    why = waiting.why()
    assert etcd.members[0].endpoint in why and "Check the endpoints" in why
    assert waiting.healthy()
    ends_at = time.monotonic() + 3
    wait_until(lambda: time.monotonic() > ends_at, "several more attempts")
    assert len(waiting.lines("metadata_store_awaited")) == 1, "once a minute"
    etcd.start()
    for master in waiting.masters:
        master.wait_listening()
    waiting.cluster.wait_formed()
    assert len(waiting.lines("metadata_store_there")) == 1
    waiting.cluster.start_segment()
    client = Client(waiting.cluster.masters, deadline_ms=2000)
    try:
        namespace = client.namespace("late")
        wait_until(lambda: namespace.put("key", b"v" * 4096), "a put is committed")
    finally:
        client.close()


@pytest.mark.alone
def test_a_master_that_waits_for_its_etcd_stops_within_a_second(
    tmp_path: Path, started: list[Waiting | Etcd]
) -> None:
    etcd = Etcd(tmp_path / "etcd")
    waiting = Waiting(tmp_path, etcd.uri())
    started += [etcd, waiting]
    waiting.why()
    for master in waiting.masters:
        asked_at = time.monotonic()
        assert master.process.stop() == 0
        assert time.monotonic() - asked_at < 1.0 + BUSY_S


def test_a_master_names_an_endpoint_where_something_else_listens(
    tmp_path: Path, started: list[Waiting | Etcd]
) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            peer.close()

    threading.Thread(target=answer, daemon=True).start()
    port = listener.getsockname()[1]
    waiting = Waiting(tmp_path, f"etcd://127.0.0.1:{port}/x")
    started.append(waiting)
    why = waiting.why()
    assert f"127.0.0.1:{port}" in why and "etcd's client port" in why
    listener.close()


def _demand_users(member: EtcdMember) -> None:
    member._post("/v3/auth/user/add", {"name": "root", "password": "secret"})
    member._post("/v3/auth/role/add", {"name": "root"})
    member._post("/v3/auth/user/grant", {"user": "root", "role": "root"})
    member._post("/v3/auth/enable")


def test_a_master_says_that_etcd_wants_a_user(tmp_path: Path, started: list[Waiting | Etcd]) -> None:
    etcd = Etcd(tmp_path / "etcd")
    started.append(etcd)
    etcd.start()
    _demand_users(etcd.members[0])
    waiting = Waiting(tmp_path, etcd.uri())
    started.append(waiting)
    why = waiting.why()
    assert "user name is empty" in why and "without users" in why
