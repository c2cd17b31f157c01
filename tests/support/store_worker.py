"""A process that commits to an embedded store until it is killed, and what its commits add up to.

python -m support.store_worker DIRECTORY SEED   (prints the number of each commit that is durable)
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from kvstore.master.metadata import carry_over, durable_log
from kvstore.master.metadata.rocksdb import RocksdbStore
from kvstore.master.metadata.store import Delete, DeleteRange, Op, Put

PREFIX = b"k"
LAST_KEY = b"klast"
KEYS = 48
TESTS = Path(__file__).resolve().parents[1]


def in_compressed_time() -> None:
    """Files, batches and checkpoints so small that seconds see what otherwise takes hours."""
    durable_log.FILE_BYTES = 256 << 10
    carry_over.CARRY_BYTES = 16 << 10
    carry_over.CARRY_DELAY_S = 0.02
    carry_over.CHECKPOINT_BYTES = 192 << 10


def commits(seed: int) -> Iterator[list[Op]]:
    """The same for the same seed; commit n says n under LAST_KEY."""
    rng = random.Random(seed)
    number = 0
    while True:
        number += 1
        ops: list[Op] = [Put(LAST_KEY, b"%d" % number)]
        for index in rng.sample(range(KEYS), rng.randint(1, 4)):
            key = b"k%03d" % index
            draw = rng.random()
            if draw < 0.7:
                ops.append(Put(key, rng.randbytes(rng.randint(0, 4000))))
            elif draw < 0.85:
                ops.append(Delete(key))
            else:
                ops = [ops[0], DeleteRange(key, b"k%03d" % (index + rng.randint(1, 8)))]
                break
        yield ops


def content(seed: int, number: int) -> dict[bytes, bytes]:
    """What the first `number` commits add up to."""
    held: dict[bytes, bytes] = {}
    for _, ops in zip(range(number), commits(seed), strict=False):
        for op in ops:
            if isinstance(op, Put):
                held[op.key] = op.value
            elif isinstance(op, Delete):
                held.pop(op.key, None)
            else:
                held = {key: value for key, value in held.items() if not op.start <= key < op.end}
    return held


async def read_all(store: RocksdbStore) -> dict[bytes, bytes]:
    return {key: value async for page in store.scan(PREFIX) for key, value in page}


async def work(directory: Path, seed: int) -> None:
    store = RocksdbStore(directory)
    await store.open()
    fence = await store.acquire()
    stored = await store.get(LAST_KEY)
    last = int(stored) if stored is not None else 0
    rest = commits(seed)
    for _ in range(last):
        next(rest)
    rng = random.Random()
    print("open", flush=True)
    while True:
        group = [next(rest) for _ in range(rng.randint(1, 5))]
        await store.commit_together(group, fence)
        last += len(group)
        print(last, flush=True)


class StoreWorker:
    """The process, from outside."""

    def __init__(
        self, directory: Path, seed: int, environment: dict[str, str] | None = None, start: bool = True
    ) -> None:
        command = [sys.executable, "-m", "support.store_worker", str(directory), str(seed)]
        variables = {**os.environ, "PYTHONPATH": str(TESTS), **(environment or {})}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=variables)
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), True)
        if start:
            assert self.process.stdout.readline() == b"open\n"

    def acked_until(self, number: int) -> int:
        """Waits until that many more commits are durable; the number of the last."""
        assert self.process.stdout is not None
        last = 0
        for _ in range(number):
            last = int(self.process.stdout.readline())
        return last

    def rocksdb_pid(self) -> int | None:
        """Of the process that has RocksDB."""
        return rocksdb_pid(self.process.pid)

    def kill(self) -> int:
        """The last commit that it has said to be durable; 0: it has said none."""
        self.process.send_signal(signal.SIGKILL)
        assert self.process.stdout is not None
        said = self.process.stdout.read().split()
        self.process.wait(10)
        return int(said[-1]) if said and said[-1].isdigit() else 0


def rocksdb_pid(parent: int) -> int | None:
    """Of the process that has RocksDB, among the children of `parent`."""
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        for child in task.read_text().split():
            if b"rocksdb_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    return None


if __name__ == "__main__":
    in_compressed_time()
    asyncio.run(work(Path(sys.argv[1]), int(sys.argv[2])))
