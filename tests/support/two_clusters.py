"""Two clusters with a network of their own each, segments and engines in both, and one set of masters between them.

The masters and their etcd are on the hub, which routes between the clusters. A segment's unix socket is seen in its own
cluster only, as hosts of different clusters share no files.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support import engine_worker
from support.etcd_server import etcd_binary
from support.network_lab import LabHost, NetworkLab
from support.processes import ServerProcess
from support.waiting import wait_until

EAST, WEST, HUB = "east", "west", "hub"
PAGE_BYTES = 256 << 10
DIRECTORY_PORTS = (7440, 7540)
CONTROL_PORTS = (7441, 7541)
ENGINE_TIMEOUT_S = 60.0
ETCD_TIMEOUT_S = 30.0


class TwoClusters:
    def __init__(self, lab: NetworkLab, directory: Path, private_directory: Path) -> None:
        self.lab = lab
        self._directory = directory
        self._private_directory = private_directory
        self._etcd: subprocess.Popen[bytes] | None = None
        self._servers: list[ServerProcess] = []

    @property
    def hub(self) -> LabHost:
        return self.lab.hosts[HUB]

    @property
    def masters(self) -> str:
        """As clients take them."""
        return ",".join(f"{self.hub.address}:{port}" for port in DIRECTORY_PORTS)

    def start(self) -> None:
        self._start_etcd()
        for directory_port, control_port in zip(DIRECTORY_PORTS, CONTROL_PORTS, strict=True):
            self._launch(
                f"master-{directory_port}",
                self.hub,
                "master",
                f"--host={self.hub.address}",
                f"--directory-port={directory_port}",
                f"--control-port={control_port}",
                "--http-port=0",
                f"--metadata=etcd://{self.hub.address}",
            )
        for master in self._servers:
            master.wait_event("listening")
        for cluster in (EAST, WEST):
            self._launch(
                f"segment-{cluster}",
                self.lab.hosts[cluster],
                "segment",
                f"--masters={','.join(f'{self.hub.address}:{port}' for port in CONTROL_PORTS)}",
                "--capacity=128MiB",
                f"--host={self.lab.hosts[cluster].address}",
                "--http-port=-1",
                # Paths of their own, as by default: clients guess by them which segment is beside them.
                f"--unix-path={self._private_directory}/{cluster}.sock",
                f"--data-dir={self._directory / cluster}",
            )
        for segment in self._servers[-2:]:
            segment.wait_event("attached")

    def engine(self, cluster: str, action: str, first: int, count: int = 32) -> dict[str, Any]:
        """Runs one engine to its end (engine_worker.py); what it says of `count` pages from number `first` on."""
        words = (json.dumps({"masters": self.masters}), action, str(first), str(count), str(PAGE_BYTES))
        ended = subprocess.run(
            [*self.lab.hosts[cluster].enter, sys.executable, engine_worker.__file__, *words],
            capture_output=True,
            text=True,
            timeout=ENGINE_TIMEOUT_S,
        )
        assert ended.returncode == 0, ended.stderr
        answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        return answer

    def logs(self) -> str:
        return "\n".join(f"---- {server.log_path.name}\n{server.log()}" for server in self._servers)

    def close(self) -> None:
        for server in reversed(self._servers):
            server.close()
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait(ETCD_TIMEOUT_S)

    def _start_etcd(self) -> None:
        url = f"http://{self.hub.address}:2379"
        peer = f"http://{self.hub.address}:2380"
        with open(self._directory / "etcd.log", "ab") as log:
            self._etcd = subprocess.Popen(
                [
                    *self.hub.enter,
                    etcd_binary(),
                    f"--data-dir={self._directory / 'etcd'}",
                    f"--listen-client-urls={url}",
                    f"--advertise-client-urls={url}",
                    f"--listen-peer-urls={peer}",
                    f"--initial-advertise-peer-urls={peer}",
                    f"--initial-cluster=default={peer}",
                    "--unsafe-no-fsync",
                    "--log-level=warn",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        ask = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=2)"
        command = [*self.hub.enter, sys.executable, "-c", ask, f"{url}/health"]
        wait_until(
            lambda: subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0,
            "etcd is healthy",
            ETCD_TIMEOUT_S,
        )

    def _launch(self, name: str, host: LabHost, *arguments: str) -> None:
        log_path = self._directory / f"{name}.log"
        self._servers.append(ServerProcess(list(arguments), log_path, enter=host.enter))
