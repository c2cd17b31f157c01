"""What a peer of the comparison is: servers that the harness starts, and a client that runs in worker processes."""

from __future__ import annotations

import contextlib
import mmap
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0


class PeerUnavailable(Exception):
    """This machine can't run the peer; the text says why."""


@dataclass
class Memory:
    """Page-aligned memory of a worker, and whatever keeps it alive."""

    address: int
    size_bytes: int
    owner: Any


def anonymous_memory(size_bytes: int) -> Memory:
    """Private memory, every page of it touched."""
    import ctypes

    area = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    return Memory(ctypes.addressof(ctypes.c_char.from_buffer(area)), size_bytes, area)


class Servers(ABC):
    """The server side of a peer, run by the harness process."""

    name: str

    def __init__(self, directory: Path, pool_bytes: int) -> None:
        self.directory = directory
        self.pool_bytes = pool_bytes
        self._processes: list[subprocess.Popen[bytes]] = []

    @abstractmethod
    def start(self) -> None:
        """Starts the processes and waits until they serve. PeerUnavailable when this machine can't."""

    @abstractmethod
    def connection(self) -> dict[str, Any]:
        """What a worker needs to reach them, as JSON."""

    def inherited_fds(self) -> Sequence[int]:
        """Descriptors that workers inherit."""
        return ()

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.poll() is None]

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def spawn(self, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Starts a server whose output goes to a log file in the peer's directory."""
        log = self.directory / f"{self.name}-{len(self._processes)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env
            )
        self._processes.append(process)
        return process

    def wait_for(self, ready: Callable[[], bool], what: str) -> None:
        """Polls until ready; fails when a server dies or the time is over, showing the end of the logs."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready():
            dead = [p for p in self._processes if p.poll() is not None]
            if dead or time.monotonic() > deadline:
                logs = "\n".join(
                    f"{p.name}:\n{tail(p)}" for p in sorted(self.directory.glob(f"{self.name}-*.log"))
                )
                state = (
                    f"ended with {dead[0].returncode}" if dead else f"not ready in {START_TIMEOUT_S:.0f} s"
                )
                raise RuntimeError(f"{self.name}: {what}: {state}\n{logs}")
            time.sleep(0.05)


class PeerClient(ABC):
    """The client side, in a worker process. One batch call at a time; a result is one truth value a key (any int)."""

    stores = True  # False: a limit of the machine, which answers every exists with yes
    durability_only = False  # True: measured where it is about how a put becomes durable, and nowhere else

    @abstractmethod
    def __init__(self, connection: dict[str, Any]) -> None: ...

    def allocate(self, size_bytes: int) -> Memory:
        """The memory that pages are put from or got into, registered where the peer wants that."""
        return anonymous_memory(size_bytes)

    @abstractmethod
    def put(self, keys: list[str], addresses: list[int], size_bytes: int) -> Sequence[int]: ...

    def put_acknowledged(
        self, keys: list[str], addresses: list[int], size_bytes: int, committed: bool
    ) -> Sequence[int]:
        """A put that waits until it is durable, or does not. RuntimeError by peers that have one acknowledgement only: the case
        that asks for both does not take them."""
        raise RuntimeError(f"{type(self).__name__} acknowledges every put in the same way")

    @abstractmethod
    def get(self, keys: list[str], addresses: list[int], size_bytes: int) -> Sequence[int]: ...

    @abstractmethod
    def exists(self, keys: list[str], keep: bool) -> Sequence[int]:
        """Which keys are there. With `keep` what was found stays readable for some seconds, where the peer can promise that."""

    @abstractmethod
    def remove(self, keys: list[str]) -> None:
        """Makes room again, outside of what is timed."""

    def close(self) -> None:  # noqa: B027  (most have nothing to close)
        """Ends threads and connections."""


def tail(path: Path, bytes_max: int = 2000) -> str:
    return path.read_bytes()[-bytes_max:].decode(errors="replace")


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    """Whether something listens on that port of 127.0.0.1."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.5):
        return True
    return False
