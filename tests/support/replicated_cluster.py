"""Several masters on one etcd, segments and all, as processes of their own."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from support.etcd_server import free_ports
from support.processes import ServerProcess
from support.waiting import wait_until

ELECTION_TIMEOUT_S = 15.0


class Master:
    """One master: its process of now, on the ports that it keeps over restarts."""

    def __init__(self, name: str, directory: Path, metadata: str, options: tuple[str, ...] = ()) -> None:
        self.name = name
        self.directory_port, self.control_port, self.http_port = free_ports(3)
        self._directory = directory
        self._arguments = [
            "master",
            "--host=127.0.0.1",
            f"--directory-port={self.directory_port}",
            f"--control-port={self.control_port}",
            f"--http-port={self.http_port}",
            f"--metadata={metadata}",
            "--grace-s=600",
            *options,
        ]
        self.process: ServerProcess

    def start(self) -> None:
        if hasattr(self, "process"):
            self.process.close()
        self.process = ServerProcess(self._arguments, self._directory / f"{self.name}.log")

    def wait_listening(self) -> None:
        self.process.wait_event("listening")

    def readiness(self) -> str:
        """'leader', 'standby', or why it is not ready."""
        return self._http("/readyz").strip()

    def metrics(self) -> dict[str, float]:
        """By name, without `kvstore_master_` and `_total`; unlabelled ones only."""
        values = {}
        for line in self._http("/metrics").splitlines():
            if line and not line.startswith("#") and "{" not in line:
                name, value = line.rsplit(" ", 1)
                values[name.removeprefix("kvstore_master_").removesuffix("_total")] = float(value)
        return values

    def leads(self) -> bool:
        try:
            return self.readiness() == "leader"
        except OSError:
            return False

    def follows(self) -> bool:
        try:
            return self.readiness() == "standby"
        except OSError:
            return False

    def _http(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=2) as answer:
                body: str = answer.read().decode()
        except urllib.error.HTTPError as error:
            body = error.read().decode()
        return body


class ReplicatedCluster:
    def __init__(self, directory: Path, metadata: str, masters: int = 2) -> None:
        self._directory = directory
        self.all_masters = [Master(f"master{i}", directory, metadata) for i in range(masters)]
        self.segments: dict[str, ServerProcess] = {}

    @property
    def masters(self) -> str:
        """The directory addresses, as clients take them."""
        return ",".join(f"127.0.0.1:{master.directory_port}" for master in self.all_masters)

    def start(self) -> None:
        for master in self.all_masters:
            master.start()
        for master in self.all_masters:
            master.wait_listening()
        self.wait_formed()

    def wait_formed(self) -> None:
        """One leader, and all others ready standbys."""

        def formed() -> bool:
            roles = sorted((master.leads(), master.follows()) for master in self.all_masters)
            return roles == [(False, True)] * (len(roles) - 1) + [(True, False)]

        wait_until(formed, "one master leads and the others stand by", ELECTION_TIMEOUT_S)

    def leader(self, timeout_s: float = ELECTION_TIMEOUT_S, but_not: Master | None = None) -> Master:
        """The master that leads, as soon as there is one."""

        def leading() -> Master | None:
            return next((m for m in self.all_masters if m is not but_not and m.leads()), None)

        found = wait_until(leading, "a master leads", timeout_s)
        assert found is not None
        return found

    def standby(self) -> Master:
        leader = self.leader()
        return next(master for master in self.all_masters if master is not leader)

    def start_segment(
        self, name: str = "segment", wait: bool = True, options: tuple[str, ...] = ()
    ) -> ServerProcess:
        controls = ",".join(f"127.0.0.1:{master.control_port}" for master in self.all_masters)
        segment = ServerProcess(
            [
                "segment",
                f"--masters={controls}",
                "--capacity=128MiB",
                "--host=127.0.0.1",
                "--port=0",
                "--http-port=0",
                f"--unix-path={self._directory / name}.sock",
                f"--data-dir={self._directory / name}",
                *options,
            ],
            self._directory / f"{name}.log",
        )
        self.segments[name] = segment
        if wait:
            segment.wait_event("attached")
        return segment

    def close(self) -> None:
        for process in self._processes():
            process.close()

    def logs(self) -> str:
        return "\n".join(f"---- {process.log_path.name}\n{process.log()}" for process in self._processes())

    def _processes(self) -> list[Any]:
        masters = [master.process for master in self.all_masters if hasattr(master, "process")]
        return [*self.segments.values(), *masters]
