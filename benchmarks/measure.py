"""Runs peers against each other: servers, a writer and a reader process each, repetitions in turn A B C, C A B, ..."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.peers import PEERS, PeerUnavailable, Servers
from benchmarks.peers.base import STOP_TIMEOUT_S

ANSWER_TIMEOUT_S = 120.0
WARM_FRACTION, FILL_PAGE_BYTES = 0.8, 1 << 20
PROBE_BATCHES, PROBE_PAGE_BYTES = 16, 16 << 10
FIRST_SEED, SEEDS_A_PEER = 10_000, 10_000
ABSENT_SEED = 1


@dataclass
class Sample:
    """One timed call."""

    seconds: float
    bytes: int
    client_cpu_s: float
    server_cpu_s: float


@dataclass
class Results:
    """Everything measured. `transfers[(peer, verb, page bytes)]`, `probes[(peer, case, keys)]` and
    `first_probes[(peer, page bytes)]` (of keys never asked for before) in seconds a call."""

    transfers: dict[tuple[str, str, int], list[Sample]] = field(default_factory=dict)
    probes: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)
    first_probes: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    wrong_pages: int = 0
    foreign_cores: float = 0.0
    seconds: float = 0.0


class WorkerProcess:
    """A worker and the pipe to it. Every answer has a deadline."""

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
        self._next_answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, verb: str, **arguments: int) -> dict[str, Any]:
        """Runs a verb of the Worker. RuntimeError when the worker dies or does not answer in time."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"verb": verb, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._next_answer()

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

    def _next_answer(self) -> dict[str, Any]:
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


@dataclass
class Contestant:
    """A peer at work. Seeds name batches; those of different contestants differ, as they may share servers."""

    name: str
    indexes: bool
    servers: Servers
    writer: WorkerProcess
    reader: WorkerProcess
    next_seed: int

    def fresh_seed(self) -> int:
        self.next_seed += 1
        return self.next_seed

    def fill(self, batch: int, batches: int) -> None:
        """Writes and removes objects, so that all memory of the servers has been touched."""
        seed = self.next_seed + 1
        self.next_seed += batches
        self.writer.call("fill", seed=seed, count=batch, size_bytes=FILL_PAGE_BYTES, batches=batches)

    def probe(self, case: str, seed: int, count: int, batches: int, calls: int) -> list[float]:
        """Seconds of each call. RuntimeError when the answer is wrong."""
        keep = case == "hit, kept"
        answer = self.reader.call("exists", seed=seed, count=count, batches=batches, calls=calls, keep=keep)
        expected = 0 if case == "miss" else count * batches
        if answer["done"] != expected:
            raise RuntimeError(f"{self.name}: exists ({case}) found {answer['done']} of {expected} pages")
        return list(answer["seconds"])

    def timed(
        self, worker: WorkerProcess, verb: str, seed: int, count: int, size_bytes: int
    ) -> tuple[Sample, int]:
        """(sample, wrong pages). RuntimeError when the peer refused a page."""
        server_cpu_s = sum(map(cpu_seconds, self.servers.pids()))
        answer = worker.call(verb, seed=seed, count=count, size_bytes=size_bytes)
        server_cpu_s = sum(map(cpu_seconds, self.servers.pids())) - server_cpu_s
        if answer["done"] != count:
            raise RuntimeError(
                f"{self.name}: {verb} of {count} x {size_bytes} B did {answer['done']} pages only"
            )
        sample = Sample(answer["seconds"], count * size_bytes, answer["cpu_s"], server_cpu_s)
        return sample, answer.get("wrong_pages", 0)


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads that live in the process, to the nanosecond (clock ticks are too coarse for one batch)."""
    total_ns = 0
    try:
        for task in os.scandir(f"/proc/{pid}/task"):
            total_ns += int(Path(task.path, "schedstat").read_text().split()[0])
    except FileNotFoundError:
        pass  # A thread ended between the listing and the reading.
    return total_ns / 1e9


def busy_seconds() -> float:
    """CPU seconds spent by the whole machine, by anyone."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")


@contextmanager
def contestants(
    names: Sequence[str], pool_bytes: int, arena_bytes: int, results: Results
) -> Iterator[list[Contestant]]:
    """Starts the peers that this machine can run; peers of one server class share their servers."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvstore-bench-")))
        shared: dict[type[Servers], Servers] = {}
        running: list[Contestant] = []
        for name in names:
            server_class = PEERS[name][0]
            if server_class not in shared:
                servers = server_class(directory, pool_bytes)
                stack.callback(servers.stop)
                try:
                    servers.start()
                except PeerUnavailable as reason:
                    results.unavailable[name] = str(reason)
                    continue
                shared[server_class] = servers
            workers = []
            for role in ("writer", "reader"):
                log = stack.enter_context((directory / f"{name}-{role}.log").open("wb"))
                worker = WorkerProcess(name, shared[server_class], arena_bytes, log)
                stack.callback(worker.stop)
                workers.append(worker)
            first_seed = FIRST_SEED + SEEDS_A_PEER * len(running)
            indexes = PEERS[name][1].has_index
            running.append(
                Contestant(name, indexes, shared[server_class], workers[0], workers[1], first_seed)
            )
        yield running


def measure(
    names: Sequence[str],
    sizes: Sequence[int],
    *,
    batch: int,
    repetitions: int,
    pool_bytes: int,
    progress: Callable[[str], None],
) -> Results:
    """The whole comparison: warm-up, then per page size put and get by every peer in turn with fresh keys, then exists."""
    results = Results()
    started, busy = time.monotonic(), busy_seconds()
    # Larger than the caches, so that pages come from and go to memory.
    arena_bytes = max(pool_bytes // 8, 2 * batch * max(FILL_PAGE_BYTES, *sizes))
    with contestants(names, pool_bytes, arena_bytes, results) as peers:
        own_before = own_cpu_seconds(peers)
        for peer in peers:
            progress(f"warming up {peer.name}")
            peer.fill(batch, int(WARM_FRACTION * pool_bytes) // (batch * FILL_PAGE_BYTES))
        for size_bytes in sizes:
            progress(f"pages of {size_bytes >> 10} KiB: {repetitions} repetitions")
            measure_size(peers, size_bytes, batch, repetitions, results)
        indexing = [peer for peer in peers if peer.indexes]
        if indexing:
            progress(f"exists: {repetitions} repetitions")
            measure_exists(indexing, batch, repetitions, results)
        own_s = own_cpu_seconds(peers) - own_before
        results.seconds = time.monotonic() - started
        results.foreign_cores = max(0.0, (busy_seconds() - busy - own_s) / results.seconds)
    return results


def in_turn(peers: list[Contestant], repetition: int) -> list[Contestant]:
    """The peers, another one first each time."""
    first = repetition % len(peers)
    return peers[first:] + peers[:first]


def measure_size(
    peers: list[Contestant], size_bytes: int, batch: int, repetitions: int, results: Results
) -> None:
    """One page size; repetition 0 is not counted: connections and code are cold."""
    written: list[tuple[Contestant, int]] = []
    for repetition in range(repetitions + 1):
        for peer in in_turn(peers, repetition):
            seed = peer.fresh_seed()
            written.append((peer, seed))
            put, _ = peer.timed(peer.writer, "put", seed, batch, size_bytes)
            probe = peer.probe("hit", seed, batch, batches=1, calls=1)  # as HiCache does before each get
            got, wrong = peer.timed(peer.reader, "get", seed, batch, size_bytes)
            results.wrong_pages += wrong
            if repetition:
                results.transfers.setdefault((peer.name, "put", size_bytes), []).append(put)
                results.transfers.setdefault((peer.name, "get", size_bytes), []).append(got)
                results.first_probes.setdefault((peer.name, size_bytes), []).extend(probe)
    for peer, seed in written:
        peer.writer.call("remove", seed=seed, count=batch)


def measure_exists(peers: list[Contestant], batch: int, repetitions: int, results: Results) -> None:
    """Probes of one batch and of sixteen, of keys that are all there or all absent, warm."""
    seeds = {}
    for peer in peers:
        seeds[peer.name] = [peer.fresh_seed() for _ in range(PROBE_BATCHES)]
        for seed in seeds[peer.name]:
            peer.timed(peer.writer, "put", seed, batch, PROBE_PAGE_BYTES)
    for repetition in range(repetitions + 1):
        for peer in in_turn(peers, repetition):
            for case in ("hit", "hit, kept", "miss"):
                for batches, calls in ((1, 20), (PROBE_BATCHES, 5)):
                    seed = seeds[peer.name][0] if case != "miss" else ABSENT_SEED
                    seconds = peer.probe(case, seed, batch, batches, calls)
                    if repetition:
                        results.probes.setdefault((peer.name, case, batch * batches), []).extend(seconds)


def own_cpu_seconds(peers: list[Contestant]) -> float:
    """CPU time of this process, the servers and the workers."""
    pids = {pid for peer in peers for pid in (*peer.servers.pids(), peer.writer.pid, peer.reader.pid)}
    return time.process_time() + sum(map(cpu_seconds, pids))
