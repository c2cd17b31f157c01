"""What is wrong is said at the client, once, with the remedy, and again when it is over."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kvstore_client import Client
from kvstore_client.protocol import HEADER_BYTES, Header, ReplyPrefix, Status, reply_frame
from support.processes import Cluster
from support.raw_client import RawClient
from support.running_cluster import paused, running_cluster
from support.waiting import wait_until

NOTES = "notes"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "kvstore_client"]


def ask(client: Client, times: int = 10) -> None:
    for _ in range(times):
        client.namespace(NOTES).get("key", deadline_ms=300)


def check_said_once(client: Client, caplog: pytest.LogCaptureFixture, *said: str) -> None:
    """One line, and the same in stats()."""
    caplog.set_level(logging.INFO, "kvstore_client")
    ask(client)
    (line,) = lines(caplog)
    (trouble,) = client.stats()["troubles"].values()
    assert line.endswith(trouble)
    for part in said:
        assert part in line


@contextmanager
def silent_port() -> Iterator[int]:
    """Accepts in the kernel, and says nothing."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield listener.getsockname()[1]


@contextmanager
def answering_port(answer: Callable[[bytes], bytes]) -> Iterator[int]:
    """Answers the first bytes of each connection with what `answer` makes of them, and closes."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(5)
                    connection.sendall(answer(connection.recv(4096)))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("store"), capacity="32MiB") as processes:
        yield processes


def test_nothing_listens(caplog: pytest.LogCaptureFixture) -> None:
    with Client("127.0.0.1:1") as client:
        check_said_once(client, caplog, "master 127.0.0.1:1: nothing listens there", "7440")


def test_a_name_without_an_address(caplog: pytest.LogCaptureFixture) -> None:
    with Client("no-such-host.invalid:7440") as client:
        check_said_once(
            client, caplog, "master no-such-host.invalid:7440: its name has no address", "name server"
        )


def test_a_port_that_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with silent_port() as port, Client(f"127.0.0.1:{port}") as client:
        check_said_once(client, caplog, f"master 127.0.0.1:{port}: it does not answer in time")


@pytest.mark.parametrize(
    ("port", "said"), [("control", "does not speak the protocol"), ("http", "does not answer in time")]
)
def test_another_port_of_the_master(
    store: Cluster, caplog: pytest.LogCaptureFixture, port: str, said: str
) -> None:
    with Client(f"127.0.0.1:{store.master_ports[f'{port}_port']}") as client:
        check_said_once(client, caplog, said, "7440 is a master's directory port")


def test_the_port_of_a_segment(store: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    (port,) = (int(segment["tcp_port"]) for segment in segments_of(store))
    with Client(f"127.0.0.1:{port}") as client:
        check_said_once(
            client, caplog, f"master 127.0.0.1:{port}: it refuses", "7440 is a master's directory port"
        )


def segments_of(store: Cluster) -> list[dict[str, object]]:
    with Client(store.masters) as client:
        wait_until(lambda: client.namespace(NOTES).put("key", b"value"), "the store takes pages")
        return client.segments()


def test_another_version(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(request: bytes) -> bytes:
        header = Header.decode(request[:HEADER_BYTES])
        prefix = ReplyPrefix(Status.UNSUPPORTED_VERSION, "this master speaks 2 to 3")
        return reply_frame(header.op, header.request_id, prefix)

    with answering_port(refuse) as port, Client(f"127.0.0.1:{port}") as client:
        check_said_once(client, caplog, "another version", "this master speaks 2 to 3", "same release")


@pytest.mark.parametrize("token", ["", "wrong"])
def test_no_token_and_a_wrong_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("KVSTORE_MASTER_TOKEN", "secret")
    cluster = Cluster(tmp_path)
    with closing(cluster):
        cluster.start_master()
        with Client(cluster.masters, token=token) as client:
            check_said_once(client, caplog, "it refuses the token", "token_file")


def test_more_namespaces_than_the_masters_keep(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSTORE_MASTER_NAMESPACES_MAX", "1")
    cluster = Cluster(tmp_path)
    with closing(cluster):
        cluster.start_master()
        with Client(cluster.masters) as client:
            assert client.namespace("the only one").open()
            check_said_once(client, caplog, "masters: no master serves", "its most of 1 namespaces")
            assert "kvstore admin forget" in "".join(client.stats()["troubles"].values())


@pytest.mark.parametrize("of", ["MASTER", "SEGMENT"])
def test_more_clients_than_a_server_takes(
    of: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"KVSTORE_{of}_CONNECTIONS_MAX", "1")
    cluster = Cluster(tmp_path)
    with closing(cluster):
        cluster.start_master()
        segment = cluster.start_segment(options=("--unix-path=off",))
        if of == "MASTER":
            port = int(cluster.masters.rpartition(":")[2])
        else:
            with Client(cluster.masters) as writer:
                assert writer.namespace(NOTES).put("key", b"value")
            port = segment.wait_event("listening")["port"]
        with wait_until(lambda: admitted(port), "the writer is gone"), Client(cluster.masters) as client:
            check_said_once(client, caplog, "connections_max", "limit of open files")


def admitted(port: int) -> RawClient | None:
    try:
        return RawClient(port)
    except AssertionError:
        return None


def test_no_room_in_any_segment_and_room_again(store: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvstore_client")
    with Client(store.masters, deadline_ms=5000) as client:
        notes = client.namespace(NOTES)
        for _ in range(5):
            assert not notes.put("too large", bytes(64 << 20))
        (line,) = lines(caplog)
        assert "room: no segment has room for what was put" in line and line.endswith(
            client.stats()["troubles"]["room"]
        )
        wait_until(lambda: notes.put("small enough", b"value"), "the store takes pages")
        (works,) = lines(caplog)[1:]
        assert works.startswith("kvstore: room: works again, after ")
        assert client.stats()["troubles"] == {}


def test_the_line_when_it_is_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvstore_client")
    with running_cluster(tmp_path) as store, Client(store.masters, deadline_ms=500) as client:
        notes = client.namespace(NOTES)
        wait_until(lambda: notes.put("key", b"value"), "the store takes pages")
        assert lines(caplog) == []
        with paused(store.master):
            ask(client)
        (hung,) = lines(caplog)
        assert f"master {store.masters}: it does not answer in time" in hung
        wait_until(
            lambda: notes.get("key") == b"value" and client.stats()["troubles"] == {},
            "the store serves again, and nothing is wrong any more",
        )
        (works,) = lines(caplog)[1:]
        assert works.startswith(f"kvstore: master {store.masters}: works again, after ")


def test_a_dead_segment_and_its_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvstore_client")
    with (
        running_cluster(tmp_path) as store,
        Client(store.masters, deadline_ms=500, same_host=False) as client,
    ):
        notes = client.namespace(NOTES)
        wait_until(lambda: notes.put("key", b"value"), "the store takes pages")
        (port,) = (segment["tcp_port"] for segment in client.segments())
        store.segments["segment"].kill()
        wait_until(lambda: notes.get("key") is None and client.stats()["troubles"], "the segment is missed")
        ask(client, 50)
        assert all(f"segment 127.0.0.1:{port}: " in line for line in lines(caplog))
        assert 1 <= len(lines(caplog)) <= 2  # its connection broke, and then nothing listened


def test_two_dead_masters_and_500_calls_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with Client("127.0.0.1:1,127.0.0.1:2") as client:
        caplog.set_level(logging.INFO, "kvstore_client")
        for _ in range(500):
            client.namespace(NOTES).get("key", deadline_ms=20)
        assert 1 <= len(lines(caplog)) <= 2
        assert sorted(client.stats()["troubles"]) == ["master 127.0.0.1:1", "master 127.0.0.1:2"]
