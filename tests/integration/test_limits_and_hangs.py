"""Servers at a limit, and servers that hang: what still answers, and what is said to whom."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore_client import protocol
from kvstore_client.protocol import Op, Status
from support.waiting import wait_until

CLIENTS = 300
FILES = 256

# A server whose limit of open files is FILES, soft and hard, and whose loop hangs for some seconds at SIGUSR1.
PROGRAM = """
import resource, signal, sys, time
limit, hang_s = int(sys.argv.pop(1)), float(sys.argv.pop(1))
if limit:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
from kvstore.common import loop_watchdog
loop_watchdog.LoopWatchdog.__init__.__kwdefaults__["dead_s"] = 1.5
def hang_here(*_):
    time.sleep(hang_s)
signal.signal(signal.SIGUSR1, hang_here)
sys.argv[0] = "kvstore"
from kvstore.cli.main import main
main()
"""

Launch = Callable[..., "Server"]


class Server:
    """A `kvstore` command; its ports, its log, and its status page."""

    def __init__(self, log: Path, arguments: list[str], files: int = 0, hang_s: float = 0.0) -> None:
        self._log = log
        with open(log, "wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(files), str(hang_s), *arguments, "--json"],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], 30.0)[0], "it does not start"
        line = self.process.stdout.readline()
        assert line, log.read_text()
        self.ports: dict[str, Any] = json.loads(line)

    def get(self, path: str, timeout_s: float = 10.0) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["http_port"], timeout=timeout_s)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(name + " "):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {name}")

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def line_count(self) -> int:
        return len(self._log.read_text().splitlines())

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    servers: list[Server] = []

    def run(kind: str, masters: str = "127.0.0.1:9", **options: Any) -> Server:
        directory = tmp_path / f"{kind}{len(servers)}"
        ports = {"master": ("directory", "control", "http"), "segment": ("http",)}[kind]
        arguments = [kind, *(f"--{name}-port=0" for name in ports)]
        if kind == "master":
            arguments.append(f"--metadata=rocksdb://{directory}")
        else:
            arguments += [f"--masters={masters}", "--capacity=64MiB", "--port=0", "--unix-path=off"]
            arguments.append(f"--data-dir={directory}")
        servers.append(Server(tmp_path / f"{kind}{len(servers)}.log", arguments, **options))
        return servers[-1]

    yield run
    for server in servers:
        server.close()


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    needed = 4 * CLIENTS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))
    opened: list[socket.socket] = []
    yield opened
    for each in opened:
        each.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def greet(port: int, role: protocol.Role = protocol.Role.CLIENT) -> tuple[socket.socket, Status, str]:
    """A connection, and what its HELLO was answered."""
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    hello = protocol.HelloRequest(role, "", "test").encode()
    client.sendall(protocol.request_frame(Op.HELLO, 1, hello))
    header = protocol.Header.decode(receive(client, protocol.HEADER_BYTES))
    prefix, _ = protocol.decode_reply(receive(client, header.body_bytes))
    return client, Status(prefix.status), prefix.text


def receive(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = client.recv(size - len(data))
        assert more, "cut off without a word"
        data += more
    return data


def port_of(server: Server) -> int:
    return int(server.ports.get("directory_port") or server.ports["port"])


@pytest.mark.parametrize("kind", ["master", "segment"])
def test_one_client_too_many_is_told_so_and_status_goes_on_when_descriptors_are_few(
    kind: str, launch: Launch, sockets: list[socket.socket]
) -> None:
    server = launch(kind, files=FILES)
    answers = []
    for _ in range(CLIENTS):
        client, status, text = greet(port_of(server))
        sockets.append(client)
        answers.append(status)
        if status is not Status.OK:
            assert "connections_max" in text and "limit of open files" in text
    taken = answers.count(Status.OK)
    assert 60 <= taken < FILES
    assert answers == [Status.OK] * taken + [Status.UNAVAILABLE] * (CLIENTS - taken)

    (low,) = server.events("file_limit_low")
    assert (low["limit"], low["lowered_to"]) == (FILES, taken)
    assert str(low["connections_max"]) and "LimitNOFILE" in low["remedy"]
    assert server.get("/healthz")[0] == 200
    port = "" if kind == "master" else "data_port_"
    assert server.metric(f"kvstore_{kind}_{port}refused_connections_total") == CLIENTS - taken
    assert (
        server.metric(f"kvstore_{kind}_open_files") < server.metric(f"kvstore_{kind}_open_files_max") == FILES
    )
    event = "connection_refused" if kind == "master" else "connections_refused"
    wait_until(lambda: len(server.events(event)) == 1, "it says once that clients are refused")
    if kind == "master":
        assert server.get("/readyz") == (200, "ready\n")
        degraded = admin_status(server)
        assert degraded.startswith("degraded: ") and f"{taken} are connected to this master" in degraded

    for client in sockets:
        client.close()
    sockets.clear()
    wait_until(lambda: admitted(server, sockets), "there is room again")


def test_a_segment_gets_in_where_clients_have_taken_all_the_room(
    launch: Launch, sockets: list[socket.socket]
) -> None:
    server = launch("master", files=FILES)
    while (answer := greet(port_of(server)))[1] is Status.OK:
        sockets.append(answer[0])
    sockets.append(answer[0])
    assert len(sockets) < CLIENTS
    client, status, text = greet(port_of(server), protocol.Role.SEGMENT)
    sockets.append(client)
    assert status is Status.OK, text
    client, status, _ = greet(port_of(server))
    sockets.append(client)
    assert status is Status.UNAVAILABLE


def admitted(server: Server, sockets: list[socket.socket]) -> bool:
    client, status, _ = greet(port_of(server))
    sockets.append(client)
    return status is Status.OK


def admin_status(server: Server) -> str:
    control = f"127.0.0.1:{server.ports['control_port']}"
    command = [sys.executable, "-m", "kvstore.cli.main", "admin", "status", "--master", control, "--no-reach"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_flood_on_the_other_ports_leaves_descriptors_for_the_store_and_the_status_page(
    launch: Launch, sockets: list[socket.socket]
) -> None:
    server = launch("master", files=FILES)
    before = open_files(server)
    for port in ("control_port", "directory_port"):
        for _ in range(2 * FILES):
            sockets.append(socket.create_connection(("127.0.0.1", server.ports[port]), timeout=20))
    assert server.get("/healthz") == (200, "ok\n")
    wait_until(lambda: open_files(server) > before + 100, "they are taken")
    assert server.metric("kvstore_master_open_files") < FILES - 16, "some are left for the store"
    for each in sockets:
        each.close()
    sockets.clear()
    wait_until(lambda: open_files(server) < before + 20, "they are gone")
    assert "namespace" in admin_status(server)


@pytest.mark.parametrize("kind", ["master", "segment"])
def test_without_a_descriptor_left_the_status_page_goes_on(kind: str, launch: Launch) -> None:
    server = launch(kind)
    server.get("/readyz")
    numbers = [int(name) for name in os.listdir(f"/proc/{server.process.pid}/fd")]
    # A new descriptor gets the lowest free number: below this one none is free.
    lowest_free = next(number for number in range(1024) if number not in numbers)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (lowest_free, lowest_free))
    ready = 200 if kind == "master" else 503
    for _ in range(20):
        # A segment that looks for its master opens sockets all the while, and may have the descriptor first: a probe asks again.
        wait_until(lambda: answered(server, "/healthz", 200), "alive")
        wait_until(lambda: answered(server, "/readyz", ready), "ready or not")
        wait_until(lambda: answered(server, "/metrics", 200, f"open_files_max {lowest_free}."), "metrics")


def answered(server: Server, path: str, status: int, text: str = "") -> bool:
    with contextlib.suppress(OSError):
        said = server.get(path, timeout_s=5.0)
        # PROGRAM calls a loop dead that was not heard of for 1.5 s, and so may one be that gets no CPU for so long.
        return said[0] == status and text in said[1]
    return False


def test_strangers_that_sit_on_the_status_page_keep_no_probe_out(
    launch: Launch, sockets: list[socket.socket]
) -> None:
    server = launch("master")
    for _ in range(3 * 64):
        sockets.append(socket.create_connection(("127.0.0.1", server.ports["http_port"]), timeout=20))
    for _ in range(10):
        assert server.get("/healthz") == (200, "ok\n")


def open_files(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


@pytest.mark.parametrize("kind", ["master", "segment"])
def test_a_loop_that_hangs_is_told_by_the_probe_and_the_log_says_where(kind: str, launch: Launch) -> None:
    server = launch(kind, hang_s=6.0)
    assert server.get("/healthz") == (200, "ok\n")
    server.process.send_signal(signal.SIGUSR1)
    status, text = wait_until(
        lambda: (answer := server.get("/healthz"))[0] == 503 and answer, "the probe tells", timeout_s=5.0
    ) or (0, "")
    assert status == 503 and "hung" in text
    status, text = server.get("/readyz")
    assert status == 503 and "event loop" in text
    assert f"kvstore_{kind}_loop_lag_max_seconds" in server.get("/metrics")[1]
    wait_until(lambda: server.get("/healthz")[0] == 200, "it goes on", timeout_s=20.0)
    assert server.metric(f"kvstore_{kind}_loop_lag_max_seconds") > 1.5
    assert server.metric(f"kvstore_{kind}_loop_stalls_total") == 1
    (stalled,) = server.events("event_loop_stalled")
    assert "hang_here" in stalled["stack"].split(" < ")[0]


@pytest.mark.parametrize("kind", ["master", "segment"])
def test_a_process_that_was_stopped_itself_has_not_hung(kind: str, launch: Launch) -> None:
    server = launch(kind)
    server.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, server.process.pid, os.WSTOPPED | os.WNOWAIT)
    wait_stopped_for_s = 2.5
    with contextlib.suppress(TimeoutError, OSError):
        server.get("/healthz", timeout_s=wait_stopped_for_s)
    server.process.send_signal(signal.SIGCONT)
    for _ in range(10):
        assert server.get("/healthz")[0] == 200
    assert server.events("event_loop_stalled") == []


@pytest.mark.parametrize("port", ["directory_port", "control_port", "http_port", "port"])
def test_five_hundred_probes_are_a_few_lines(port: str, launch: Launch) -> None:
    server = launch("segment" if port == "port" else "master")
    before = server.line_count()
    for number in range(500):
        with contextlib.suppress(ConnectionError):
            probe = socket.create_connection(("127.0.0.1", server.ports[port]), timeout=20)
            with probe:
                if number % 2:
                    probe.sendall(b"GET / HTTP/1.0\r\nHost: 500 of these\r\n\r\n")
    assert server.get("/healthz")[0] == 200
    assert server.line_count() - before <= 5
