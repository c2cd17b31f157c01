"""0049, what readers notice when one of the holders of their pages hangs or is killed, and how copies share the reading of a page."""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from benchmarks.cases.base import percentile
from benchmarks.decisions.base import Batch, Table, fresh_keys, hashes, tcp_client
from benchmarks.peers.base import free_port
from benchmarks.peers.kvstore import KvstoreServers, announced
from kvstore_client import Client, Pages
from kvstore_client.objects import DONE_FOUND

SIZE_BYTES = 64 << 10
PAGES = 64
BATCH = 4
PHASE_S = 8.0
DEADLINE_MS = 1000
POOL_BYTES = 256 << 20
HOT_READERS = 8


class Hosts(KvstoreServers):
    """A master and segments that lie on hosts of their own, as far as the loopback has hosts."""

    name = "replicas"

    def start(self) -> None:
        self.http_ports: list[int] = []
        self.segment_pids: list[int] = []
        super().start()

    def start_segment(self) -> None:
        host = f"127.0.0.{len(self.http_ports) + 1}"
        http_port = free_port()
        announced(
            self,
            "attached",
            "segment",
            f"--data-dir={self.directory / host}",
            f"--masters={self._control}",
            f"--capacity={self.pool_bytes}",
            f"--host={host}",
            f"--advertise-host={host}",
            "--port=0",
            "--http-host=127.0.0.1",
            f"--http-port={http_port}",
            *self.segment_options,
        )
        self.http_ports.append(http_port)
        self.segment_pids.append(self.pids()[-1])

    def gets(self) -> list[float]:
        """Objects that each segment has served."""
        return [_metric(port, "kvstore_segment_gets_total") for port in self.http_ports]


def _metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


class Reader:
    """Gets batches of the same keys all the time, with a client and memory of its own."""

    def __init__(self, masters: str, keys: list[str]) -> None:
        self._client = Client(masters, same_host=False, deadline_ms=DEADLINE_MS)
        self._pages = self._client.namespace("replicas").pages()
        self._memory = Batch(min(BATCH, len(keys)), SIZE_BYTES)
        self._chunks = itertools.cycle(
            [hashes(keys[at : at + BATCH]) for at in range(0, len(keys) - len(keys) % BATCH, BATCH)]
            or [hashes(keys)]
        )
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._took_s: list[float] = []
        self._failed = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.perf_counter()
            done = self._pages.get_pieces(next(self._chunks), self._memory.pieces, deadline_ms=DEADLINE_MS)
            took_s = time.perf_counter() - began
            with self._lock:
                self._took_s.append(took_s)
                self._failed += done.translate(DONE_FOUND).count(0)

    def take(self) -> tuple[list[float], int]:
        """What has been since it was last asked: seconds of each get, pages that were not got."""
        with self._lock:
            taken = self._took_s, self._failed
            self._took_s, self._failed = [], 0
        return taken

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._client.close()


def measure(repetitions: int) -> Table:
    """`repetitions` are not needed: phases of eight seconds."""
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="kvstore-bench-") as directory:
        servers = Hosts(Path(directory), POOL_BYTES)
        try:
            servers.start()
            masters = servers.connection()["masters"]
            with tcp_client(masters) as client:
                pages = client.namespace("replicas").pages()
                others = _put(pages, PAGES, 1)
                servers.start_segment()
                servers.start_segment()
                copied = _put(pages, PAGES, 2)
            rows += _failures(servers, masters, others, copied)
            rows += _hot_page(servers, masters)
        finally:
            servers.stop()
    return Table(
        f"gets of {BATCH} pages of {SIZE_BYTES >> 10} KiB; two copies of the one kind, one of the other, none of it where a "
        "segment fails",
        ("phase", "gets", "two copies: failed", "p50, ms", "p99, ms", "others: failed", "p99, ms"),
        rows,
    )


def _put(pages: Pages, count: int, replicas: int) -> list[str]:
    keys = fresh_keys(count)
    for key in keys:
        assert pages.batch_put([key], [bytes(SIZE_BYTES)], replicas=replicas) == [True]
    return keys


def _failures(servers: Hosts, masters: str, others: list[str], copied: list[str]) -> list[list[str]]:
    two, one = Reader(masters, copied), Reader(masters, others)
    victim = servers.segment_pids[1]

    def phase(name: str) -> list[str]:
        two.take(), one.take()
        time.sleep(PHASE_S)
        took, failed = two.take()
        took_others, failed_others = one.take()
        ms = [f"{1e3 * percentile(t, q):.1f}" for t, q in ((took, 0.5), (took, 0.99), (took_others, 0.99))]
        return [name, f"{len(took):,}", str(failed), ms[0], ms[1], str(failed_others), ms[2]]

    try:
        time.sleep(1)
        rows = [phase("all well")]
        os.kill(victim, signal.SIGSTOP)
        rows.append(phase("one holder stopped"))
        os.kill(victim, signal.SIGCONT)
        rows.append(phase("it goes on"))
        os.kill(victim, signal.SIGKILL)
        rows.append(phase("it is killed"))
    finally:
        two.stop()
        one.stop()
    return rows


def _hot_page(servers: Hosts, masters: str) -> list[list[str]]:
    rows = []
    for replicas in (1, 2):
        with tcp_client(masters) as client:
            key = _put(client.namespace("replicas").pages(), 1, replicas)
        servers.http_ports = [port for port in servers.http_ports if _answers(port)]
        before = servers.gets()
        readers = [Reader(masters, key) for _ in range(HOT_READERS)]
        time.sleep(PHASE_S / 2)
        for reader in readers:
            reader.stop()
        served = [now - was for now, was in zip(servers.gets(), before, strict=True)]
        took = [s for reader in readers for s in reader.take()[0]]
        share = max(served) / sum(served)
        rows.append(
            [
                f"one page, {HOT_READERS} clients, copies: {replicas}; the busiest holder serves {100 * share:.0f} %",
                f"{len(took):,}",
                "",
                f"{1e3 * percentile(took, 0.5):.1f}",
                f"{1e3 * percentile(took, 0.99):.1f}",
                "",
                "",
            ]
        )
    return rows


def _answers(port: int) -> bool:
    try:
        return _metric(port, "kvstore_segment_gets_total") >= 0
    except OSError:
        return False
