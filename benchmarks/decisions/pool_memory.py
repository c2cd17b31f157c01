"""0031, the memory of a pool: what each kind takes to touch, costs a client in page tables, and gives back."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.decisions.base import BATCH, DEADLINE_MS, Batch, Table, fresh_keys, hashes
from benchmarks.peers.kvstore import KvstoreServers
from kvstore_client import Client

POOL_BYTES = 4 << 30
PAGE_BYTES = 1 << 20
FILLED_BYTES = 3 << 30
HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")


def measure(repetitions: int) -> Table:
    """Each kind of memory behind the same store, a client of the same host that reads all of it."""
    shared = Path(f"/dev/shm/kvstore-bench-{os.getpid()}")
    kinds: list[tuple[str, Sequence[str]]] = [
        ("memfd, small pages", ("--pool-path=off", "--huge-pages=off")),
        ("memfd, transparent huge pages", ("--pool-path=off", "--huge-pages=thp")),
        ("file, small pages", (f"--pool-path={shared}", "--huge-pages=off")),
        ("file, transparent huge pages", (f"--pool-path={shared}", "--huge-pages=thp")),
    ]
    rows = [_row(name, options, repetitions, shared) for name, options in kinds]
    with _reserved_pages((POOL_BYTES + (256 << 20)) >> 21) as got:
        if got:
            options = ("--pool-path=off", "--huge-pages=2MiB")
            rows.append(_row("memfd, pages of 2 MiB set aside", options, repetitions, shared))
    head = [
        "memory",
        "touched, GB/s (the faster of two)",
        "page tables of a client, KiB",
        "of what is mapped, %",
        "get, GB/s (the fastest)",
    ]
    return Table(f"{POOL_BYTES >> 30} GiB pool, pages of {PAGE_BYTES >> 20} MiB, same host", head, rows)


def _row(name: str, options: Sequence[str], repetitions: int, shared: Path) -> list[str]:
    # The second start gets memory that the first has given back: a virtual machine's first touch is its host's business.
    starts = [_measured(options, count, shared) for count in (0, repetitions)]
    touched = max(ready["gb_per_s"] for ready, _, _ in starts)
    ready, tables, rate = starts[-1]
    share = 100 * tables / ready["touched_bytes"]
    return [name, f"{touched:.1f}", f"{tables >> 10}", f"{share:.4f}", f"{rate:.1f}"]


def _measured(options: Sequence[str], repetitions: int, shared: Path) -> tuple[dict[str, float], int, float]:
    """(what the segment says of its pool, growth of this process's page tables, GB it gets in a second of CPU time)."""
    with tempfile.TemporaryDirectory(prefix="kvstore-bench-") as directory:
        servers = KvstoreServers(Path(directory), POOL_BYTES)
        servers.segment_options = options
        try:
            servers.start()
            read = _read_all(servers.connection()["masters"], repetitions) if repetitions else (0, 0.0)
            return _pool_ready(Path(directory)), *read
        finally:
            servers.stop()
            shared.unlink(missing_ok=True)


def _pool_ready(directory: Path) -> dict[str, float]:
    for log in directory.glob("*.log"):
        for line in log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if event.get("event") == "pool_ready":
                    return dict(event)
    raise RuntimeError("the segment has not said what its pool took")


def _read_all(masters: str, repetitions: int) -> tuple[int, float]:
    """(growth of this process's page tables, GB a second of its CPU time: other work on the machine does not count)."""
    batch = Batch(BATCH, PAGE_BYTES)
    before = _page_table_bytes()
    with Client(masters, tcp=False, deadline_ms=DEADLINE_MS) as client:
        pages = client.namespace("pool").pages()
        batches = [hashes(fresh_keys(BATCH)) for _ in range(FILLED_BYTES // (BATCH * PAGE_BYTES))]
        for keys in batches:
            pages.put_pieces(keys, batch.pieces, deadline_ms=DEADLINE_MS)
        rates = []
        for _ in range(repetitions):
            began = time.process_time()
            for keys in batches:
                statuses = pages.get_pieces(keys, batch.pieces, deadline_ms=DEADLINE_MS)
                if any(statuses):
                    raise RuntimeError("a page that was put is not there")
            rates.append(FILLED_BYTES / (time.process_time() - began) / 1e9)
        return max(_page_table_bytes() - before, 0), max(rates)


def _page_table_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmPTE:"))


@contextlib.contextmanager
def _reserved_pages(pages: int) -> Iterator[bool]:
    """Whether the machine has set so many huge pages aside for us."""
    try:
        before = int(HUGE_PAGES.read_text())
        HUGE_PAGES.write_text(str(before + pages))
    except OSError:
        yield False
        return
    try:
        yield int(HUGE_PAGES.read_text()) >= before + pages
    finally:
        HUGE_PAGES.write_text(str(before))
