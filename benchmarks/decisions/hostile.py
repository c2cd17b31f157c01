"""0033, budgets: what peers that are out to hurt a segment cost a client that is not."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.decisions.base import DEADLINE_MS, Batch, Table, fresh_keys, hashes
from benchmarks.hostile_peers import ON_DATA_PORT, AttackMaker, Target, resident_anonymous_bytes
from benchmarks.peers.kvstore import KvstoreServers
from kvstore_client import Client

POOL_BYTES = 512 << 20
OBJECTS, OBJECT_BYTES = 16, 64 << 10
STORED = 512
CALLS_A_REPETITION = 100
ROUNDS = 2
WARM_CALLS = 60
BEGIN_TIMEOUT_S = 60.0


def segment_ports(servers: KvstoreServers) -> dict[str, Any]:
    """What the segment, the second that was started, has announced."""
    log = servers.directory / f"{servers.name}-1.log"
    said = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return next(line for line in said if line["event"] == "listening")


def measure(repetitions: int) -> Table:
    """An honest client's put and get of 16 pages of 64 KiB over TCP, alone and under each attack, by turns."""
    calls = CALLS_A_REPETITION * max(1, repetitions)
    with TemporaryDirectory(prefix="kvstore-bench-") as directory:
        servers = KvstoreServers(Path(directory), POOL_BYTES)
        try:
            servers.start()
            segment, pid = segment_ports(servers), servers.pids()[1]
            with Client(servers.connection()["masters"], same_host=False, deadline_ms=DEADLINE_MS) as client:
                space = client.namespace("hostile")
                pages = space.pages()
                stored = fresh_keys(STORED)
                batch = Batch(STORED, OBJECT_BYTES)
                pages.put_pieces(hashes(stored), batch.pieces, deadline_ms=DEADLINE_MS)
                few = Batch(OBJECTS, OBJECT_BYTES)

                def one_call() -> None:
                    keys = hashes(fresh_keys(OBJECTS))
                    pages.put_pieces(keys, few.pieces, deadline_ms=DEADLINE_MS)
                    pages.get_pieces(keys, few.pieces, deadline_ms=DEADLINE_MS)

                target = Target(
                    segment["port"],
                    segment["unix_path"],
                    bytes.fromhex(space.namespace_id),
                    tuple(bytes.fromhex(key) for key in stored),
                )
                timed_ms(one_call, WARM_CALLS)
                rows = []
                for make in ON_DATA_PORT:
                    alone: list[float] = []
                    under: list[float] = []
                    grown, opened_all = 0, 0
                    for _ in range(ROUNDS):
                        # One after the other, so that what else the machine does is much the same for both.
                        alone += timed_ms(one_call, calls // ROUNDS)
                        before = resident_anonymous_bytes(pid)
                        with attacking(make, target) as opened:
                            under += timed_ms(one_call, calls // ROUNDS)
                            grown = max(grown, resident_anonymous_bytes(pid) - before)
                        opened_all += opened()
                    rows.append(
                        [
                            make.__name__.replace("_", " "),
                            str(opened_all),
                            f"{percentile(alone, 0.5):.1f}",
                            f"{percentile(under, 0.5):.1f}",
                            f"{percentile(alone, 0.99):.1f}",
                            f"{percentile(under, 0.99):.1f}",
                            f"{percentile(under, 0.99) / percentile(alone, 0.99):.1f}",
                            f"{grown / 2**20:.0f}",
                        ]
                    )
        finally:
            servers.stop()
    question = "put and get of 16 pages of 64 KiB over TCP while others attack the segment"
    head = ["attack", "connections opened", "p50 alone ms", "p50 ms", "p99 alone ms", "p99 ms", "times alone"]
    head.append("memory of the segment's own, MiB more")
    return Table(question, head, rows)


@contextlib.contextmanager
def attacking(make: AttackMaker, target: Target) -> Iterator[Callable[[], int]]:
    """From a process of its own, so that it takes nothing from the client's. Yields how many connections it has opened."""
    context = multiprocessing.get_context("spawn")
    begun, over, opened = context.Event(), context.Event(), context.Value("Q")
    process = context.Process(target=_attack, args=(make, target, begun, over, opened), daemon=True)
    process.start()
    try:
        if not begun.wait(BEGIN_TIMEOUT_S):
            raise TimeoutError(f"{make.__name__} does not begin")
        yield lambda: int(opened.value)
    finally:
        over.set()
        process.join(BEGIN_TIMEOUT_S)


def _attack(make: AttackMaker, target: Target, begun: Any, over: Any, opened: Any) -> None:
    with make(target) as attack:
        begun.set()
        while not over.wait(0.1):
            opened.value = attack.opened


def timed_ms(call: Callable[[], None], calls: int) -> list[float]:
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1e3)
    return times


def percentile(times: list[float], part: float) -> float:
    return sorted(times)[int(part * (len(times) - 1))]
