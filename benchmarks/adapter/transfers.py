"""GB/s of a prefetch and a backup as SGLang's own controller drives them, of kvstore, Mooncake Store and SGLang's file backend.

All of them run at the same time, idle but for the one whose turn it is, so that what else the machine does hits them alike.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from sglang_harness.case import Case
from sglang_harness.engine import Engine

from benchmarks.peers.base import PeerUnavailable
from benchmarks.peers.kvstore import KvstoreServers
from benchmarks.peers.mooncake import CLIENT_ENVIRONMENT, MooncakeServers

PAGES = 128
GEOMETRY = Case(pages=PAGES, layers=16, heads=4, head_dim=64)  # 256 KiB a page, 32 MiB a prompt
POOL_BYTES = 2 << 30
BENCH_PYTHON = Path(".venv-bench/bin/python")
HEAD = ("backend", "backup GB/s", "of kvstore's", "prefetch GB/s", "of kvstore's", "prompts loaded whole")


class BenchMooncake(MooncakeServers):
    """In the environment that `make bench` sets up; SGLang's process imports its client from there too."""

    python = str(BENCH_PYTHON.absolute())


def measure(repetitions: int) -> list[Sequence[str]]:
    """Rows of the table."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvstore-bench-")))
        engines: dict[str, Engine] = {}
        missing: dict[str, str] = {}
        for name, case_of in CONTESTANTS.items():
            try:
                engines[name] = stack.enter_context(Engine(case_of(stack, directory)))
            except PeerUnavailable as why:
                missing[name] = str(why)
        times = {name: _Times() for name in engines}
        for number in range(repetitions + 1):
            for name, engine in engines.items():
                _one_prompt(engine, number, times[name], is_counted=number > 0)
    rows = [_row(name, times[name], times["kvstore, same host"]) for name in engines]
    return [*rows, *((name, f"left out: {why}", *[""] * 4) for name, why in missing.items())]


class _Times:
    def __init__(self) -> None:
        self.backup: list[float] = []
        self.prefetch: list[float] = []
        self.whole = 0


def _one_prompt(engine: Engine, number: int, times: _Times, *, is_counted: bool) -> None:
    """Backs a prompt up that nobody has seen, and prefetches it into other pages."""
    case = replace(engine.case, token_base=1000 + number * 1_000_000)
    slots = engine.host_pool.alloc(PAGES * case.page_size)
    engine.fill(slots, seed=number)
    expected = engine.page_bytes(slots)
    started = time.perf_counter()
    _, stored = engine.backup(slots, case.tokens, timeout_s=60)
    backup_s = time.perf_counter() - started
    engine.host_pool.free(slots)
    engine.wipe()
    started = time.perf_counter()
    got = engine.prefetch(case.tokens, timeout_s=60)
    prefetch_s = time.perf_counter() - started
    is_whole = stored == got.completed_tokens == PAGES * case.page_size
    if is_whole:
        is_whole = engine.page_bytes(got.host_indices) == expected
    if got.host_indices is not None:
        engine.host_pool.free(got.host_indices)
    if is_counted:
        times.backup.append(backup_s)
        times.prefetch.append(prefetch_s)
        times.whole += is_whole


def _row(name: str, times: _Times, ours: _Times) -> Sequence[str]:
    size_bytes = PAGES * 2 * GEOMETRY.page_size * GEOMETRY.layers * GEOMETRY.heads * GEOMETRY.head_dim * 2
    cells = []
    for mine, kvstores in ((times.backup, ours.backup), (times.prefetch, ours.prefetch)):
        ratio = median(kvstores) / median(mine)
        cells += [f"{size_bytes / median(mine) / 1e9:.2f}", f"{ratio:.2f}"]
    return (name, *cells, f"{times.whole} of {len(times.backup)}")


def _kvstore(stack: ExitStack, directory: Path, allocator: str, **options: Any) -> Case:
    (home := directory / os.urandom(4).hex()).mkdir()
    servers = KvstoreServers(home, POOL_BYTES)
    stack.callback(servers.stop)
    servers.start()
    given = {"masters": servers.connection()["masters"], "deadline_ms": 5000, **options}
    return replace(GEOMETRY, allocator=allocator, options=given)


def _mooncake(stack: ExitStack, directory: Path) -> Case:
    if not BENCH_PYTHON.exists():
        raise PeerUnavailable("make bench installs it")
    (home := directory / "mooncake").mkdir()
    servers = BenchMooncake(home, POOL_BYTES)
    stack.callback(servers.stop)
    servers.start()
    os.environ.update(CLIENT_ENVIRONMENT)
    sys.path += [str(path) for path in BENCH_PYTHON.absolute().parents[1].glob("lib/python*/site-packages")]
    at = servers.connection()
    options = {
        "master_server_address": at["master"],
        "metadata_server": at["metadata"],
        "local_hostname": "127.0.0.1",
        "global_segment_size": 0,
        "protocol": "tcp",
        "check_server": False,
    }
    return replace(GEOMETRY, backend="mooncake", options=options)


def _files(stack: ExitStack, directory: Path) -> Case:
    (home := directory / "files").mkdir()
    return replace(GEOMETRY, backend="file", options={"file_storage_path": str(home)})


CONTESTANTS = {
    "kvstore, same host": lambda stack, directory: _kvstore(stack, directory, "shm"),
    "kvstore, TCP": lambda stack, directory: _kvstore(stack, directory, "default", same_host=False),
    "Mooncake Store, TCP": _mooncake,
    "file": _files,
}
