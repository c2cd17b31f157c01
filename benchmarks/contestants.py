"""Peers at work: their servers, and processes that call them. Every answer has a deadline."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.peers import PEERS, PeerClient, PeerUnavailable, Servers
from benchmarks.peers.base import STOP_TIMEOUT_S

ANSWER_TIMEOUT_S = 120.0
WARM_FRACTION, FILL_PAGE_BYTES = 0.8, 1 << 20
FIRST_SEED, SEEDS_A_PEER = 10_000, 10_000


@dataclass
class Sample:
    """One timed call."""

    seconds: float
    bytes: int
    client_cpu_s: float
    server_cpu_s: float


class WorkerProcess:
    """A worker and the pipe to it."""

    def __init__(self, peer: str, servers: Servers, arena_bytes: int, log: IO[bytes]) -> None:
        connection = {**servers.connection(), "arena_bytes": arena_bytes}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", peer, json.dumps(connection)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            pass_fds=list(servers.inherited_fds()),
        )
        self._peer = peer
        self._log_name = log.name
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, verb: str, **arguments: float) -> None:
        """Starts a verb of the Worker; `answer` waits for its end."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"verb": verb, **arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """RuntimeError when the worker dies or does not answer in time."""
        try:
            answer = self._answers.get(timeout=ANSWER_TIMEOUT_S)
        except queue.Empty:
            self._process.kill()
            raise RuntimeError(f"{self._peer}: a worker gave no answer in {ANSWER_TIMEOUT_S:.0f} s") from None
        if answer is None:
            raise RuntimeError(
                f"{self._peer}: a worker died:\n{Path(self._log_name).read_text(errors='replace')[-2000:]}"
            )
        return answer

    def call(self, verb: str, **arguments: float) -> dict[str, Any]:
        """Runs a verb of the Worker to its end."""
        self.ask(verb, **arguments)
        return self.answer()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._answers.put(json.loads(line))
        self._answers.put(None)


@dataclass
class Contestant:
    """A peer at work. Seeds name batches; those of different contestants differ, as they may share servers."""

    name: str
    kind: type[PeerClient]
    servers: Servers
    writer: WorkerProcess
    reader: WorkerProcess
    next_seed: int
    others: list[WorkerProcess] = field(default_factory=list)  # for loads of more than two clients

    def fresh_seed(self) -> int:
        self.next_seed += 1
        return self.next_seed

    @property
    def workers(self) -> list[WorkerProcess]:
        return [self.writer, self.reader, *self.others]

    def fill(self, batch: int, batches: int) -> None:
        """Writes and removes objects, so that all memory of the servers has been touched."""
        seed = self.next_seed + 1
        self.next_seed += batches
        self.writer.call("fill", seed=seed, count=batch, size_bytes=FILL_PAGE_BYTES, batches=batches)

    def probe(self, case: str, seed: int, count: int, batches: int, calls: int) -> tuple[list[float], float]:
        """(seconds of each call, CPU seconds of the client in all). RuntimeError when the answer is wrong."""
        keep = case == "hit, kept"
        answer = self.reader.call("exists", seed=seed, count=count, batches=batches, calls=calls, keep=keep)
        expected = 0 if case == "miss" else count * batches
        if answer["done"] != expected:
            raise RuntimeError(f"{self.name}: exists ({case}) found {answer['done']} of {expected} pages")
        return list(answer["seconds"]), answer["cpu_s"]

    def timed(
        self, worker: WorkerProcess, verb: str, seed: int, count: int, size_bytes: int
    ) -> tuple[Sample, int]:
        """(sample, wrong pages). RuntimeError when the peer refused a page."""
        server_cpu_s = self.server_cpu_seconds()
        answer = worker.call(verb, seed=seed, count=count, size_bytes=size_bytes)
        server_cpu_s = self.server_cpu_seconds() - server_cpu_s
        if answer["done"] != count:
            raise RuntimeError(
                f"{self.name}: {verb} of {count} x {size_bytes} B did {answer['done']} pages only"
            )
        sample = Sample(answer["seconds"], count * size_bytes, answer["cpu_s"], server_cpu_s)
        return sample, answer.get("wrong_pages", 0)

    def server_cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, self.servers.pids()))


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads that live in the process, to the nanosecond (clock ticks are too coarse for one batch)."""
    total_ns = 0
    try:
        for task in os.scandir(f"/proc/{pid}/task"):
            total_ns += int(Path(task.path, "schedstat").read_text().split()[0])
    except FileNotFoundError:
        pass  # A thread ended between the listing and the reading.
    return total_ns / 1e9


def own_cpu_seconds(peers: list[Contestant]) -> float:
    """CPU time of this process, the servers and the workers."""
    pids = {pid for peer in peers for pid in (*peer.servers.pids(), *(w.pid for w in peer.workers))}
    return time.process_time() + sum(map(cpu_seconds, pids))


def in_turn(peers: list[Contestant], repetition: int) -> list[Contestant]:
    """The peers, another one first each time."""
    first = repetition % max(1, len(peers))
    return peers[first:] + peers[:first]


@contextmanager
def contestants(
    names: Sequence[str], pool_bytes: int, arena_bytes: int, unavailable: dict[str, str], clients: int
) -> Iterator[list[Contestant]]:
    """Starts the peers that this machine can run, with `clients` workers each; peers of one server class
    share their servers. What can't run is told in `unavailable`."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvstore-bench-")))
        shared: dict[type[Servers], Servers] = {}
        running: list[Contestant] = []
        for name in names:
            server_class, client_class = PEERS[name]
            if server_class not in shared:
                servers = server_class(directory, pool_bytes)
                stack.callback(servers.stop)
                try:
                    servers.start()
                except PeerUnavailable as reason:
                    unavailable[name] = str(reason)
                    continue
                shared[server_class] = servers
            workers = []
            for number in range(clients if client_class.stores else 2):
                log = stack.enter_context((directory / f"{name}-client-{number}.log").open("wb"))
                worker = WorkerProcess(name, shared[server_class], arena_bytes, log)
                stack.callback(worker.stop)
                workers.append(worker)
            first_seed = FIRST_SEED + SEEDS_A_PEER * len(running)
            running.append(
                Contestant(
                    name,
                    client_class,
                    shared[server_class],
                    workers[0],
                    workers[1],
                    first_seed,
                    workers[2:],
                )
            )
        yield running
