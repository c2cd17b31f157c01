"""Hosts on one machine: network namespaces joined by links that can be cut, for what crosses a network.

Needs root, or a kernel that lets users make user namespaces. See network_lab_process.py for the topology.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STEP_TIMEOUT_S = 30.0
_LAB_PROCESS = Path(__file__).with_name("network_lab_process.py")


@dataclass(frozen=True)
class LabHost:
    name: str
    address: str
    # What a command begins with to run there.
    enter: tuple[str, ...]


class NetworkLab:
    """A hub and leaves around it. `private_directory`: what a host puts there no other host sees."""

    def __init__(self, hub: str, leaves: tuple[str, ...], private_directory: Path) -> None:
        private_directory.mkdir()
        options = {"hub": hub, "leaves": leaves, "private_directory": str(private_directory)}
        as_root = os.geteuid() == 0
        self._process = subprocess.Popen(
            [
                "unshare",
                "--net",
                *(() if as_root else ("--user", "--map-root-user")),
                sys.executable,
                str(_LAB_PROCESS),
                json.dumps(options),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        user = () if as_root else ("--user", "--preserve-credentials")
        self.hosts = {
            name: LabHost(name, address, ("nsenter", "--target", str(pid), "--net", "--mount", *user, "--"))
            for name, (pid, address) in json.loads(self._answer()).items()
        }

    def cut(self, leaf: str) -> None:
        """Takes the leaf's link down. What runs there keeps its sockets, and hears nothing."""
        self._command("down", leaf)

    def heal(self, leaf: str) -> None:
        self._command("up", leaf)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(STEP_TIMEOUT_S)

    def _command(self, word: str, leaf: str) -> None:
        assert self._process.stdin is not None
        print(word, leaf, file=self._process.stdin, flush=True)
        assert self._answer() == "done\n"

    def _answer(self) -> str:
        try:
            line = self._lines.get(timeout=STEP_TIMEOUT_S)
        except queue.Empty:
            raise AssertionError(f"the network lab said nothing for {STEP_TIMEOUT_S:g} s") from None
        assert line, f"the network lab ended with {self._process.wait(STEP_TIMEOUT_S)}"
        return line

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


@contextmanager
def network_lab(hub: str, leaves: tuple[str, ...], private_directory: Path) -> Iterator[NetworkLab]:
    """For the length of a `with` block; end what runs on the hosts before it ends."""
    lab = NetworkLab(hub, leaves, private_directory)
    try:
        yield lab
    finally:
        lab.close()
