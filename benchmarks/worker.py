"""One client process of a peer: takes commands on stdin, answers on stdout, a line of JSON each.

usage: python -m benchmarks.worker PEER CONNECTION_JSON

Pages are put from, or got into, a window of a large arena that moves on with every batch, so that neither side works in cache.
Contents follow from the batch's seed alone, so that the reader, another process than the writer, knows every byte to expect.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import sys
import time
from typing import Any

from benchmarks.peers import PEERS
from benchmarks.peers.base import Memory, PeerClient

PATTERN_BYTES = 4 << 20
STAMP_EVERY_BYTES = 4096
POISON = 0xA5
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def page_keys(seed: int, count: int) -> list[str]:
    """64 hex digits a key, as SGLang's page hashes; the last eight are a running number, for peers without an index."""
    return [
        hashlib.sha256(f"{seed}/{i}".encode()).hexdigest()[:56] + f"{seed * count + i & 0xFFFFFFFF:08x}"
        for i in range(count)
    ]


class Worker:
    """A peer's client and its arena."""

    def __init__(self, client: PeerClient, arena: Memory) -> None:
        self.client = client
        self.arena = arena
        self._window = 0
        self._pattern = random.Random(20).randbytes(PATTERN_BYTES)

    def window(self, count: int, size_bytes: int) -> list[int]:
        """Addresses of `count` pages, after the ones handed out before."""
        if self._window + count * size_bytes > self.arena.size_bytes:
            self._window = 0
        start = self.arena.address + self._window
        self._window += count * size_bytes
        return [start + i * size_bytes for i in range(count)]

    def write_page(self, address: int, seed: int, index: int, size_bytes: int) -> None:
        """The content of page `index` of the batch: the pattern from a place of its own, and a stamp in every 4 KiB."""
        start = (seed * 7919 + index * 4099) % (PATTERN_BYTES // 2)
        for at in range(0, size_bytes, PATTERN_BYTES // 2):
            part = self._pattern[start : start + min(size_bytes - at, PATTERN_BYTES // 2)]
            ctypes.memmove(address + at, part, len(part))
        for at in range(0, size_bytes, STAMP_EVERY_BYTES):
            ctypes.memmove(address + at, f"{seed:08x}{index:08x}{at:016x}".encode(), 32)

    def put(self, seed: int, count: int, size_bytes: int) -> dict[str, Any]:
        keys, addresses = page_keys(seed, count), self.window(count, size_bytes)
        for i, address in enumerate(addresses):
            self.write_page(address, seed, i, size_bytes)
        return self._timed(lambda: self.client.put(keys, addresses, size_bytes))

    def get(self, seed: int, count: int, size_bytes: int) -> dict[str, Any]:
        keys, addresses = page_keys(seed, count), self.window(count, size_bytes)
        ctypes.memset(addresses[0], POISON, count * size_bytes)
        answer = self._timed(lambda: self.client.get(keys, addresses, size_bytes))
        expected = ctypes.create_string_buffer(size_bytes)
        answer["wrong_pages"] = 0
        for i, address in enumerate(addresses):
            self.write_page(ctypes.addressof(expected), seed, i, size_bytes)
            answer["wrong_pages"] += _memcmp(address, expected, size_bytes) != 0
        return answer

    def exists(self, seed: int, count: int, batches: int, calls: int, keep: bool) -> dict[str, Any]:
        """Probes the keys of `batches` batches of `count` in one call, `calls` times; `seconds` has every call's time."""
        keys = [key for batch in range(batches) for key in page_keys(seed + batch, count)]
        cpu_s = time.process_time()
        seconds, found = [], 0
        for _ in range(calls):
            started = time.perf_counter()
            result = self.client.exists(keys, keep)
            seconds.append(time.perf_counter() - started)
            found = sum(result)
        return {"seconds": seconds, "cpu_s": time.process_time() - cpu_s, "done": found}

    def puts(self, seed: int, count: int, size_bytes: int, calls: int, committed: bool) -> dict[str, Any]:
        """`calls` batches of one put each, acknowledged when sealed or when committed, and removed again."""
        seconds = []
        for call in range(calls):
            keys, addresses = page_keys(seed + call, count), self.window(count, size_bytes)
            started = time.perf_counter()
            done = self.client.put_acknowledged(keys, addresses, size_bytes, committed)
            seconds.append(time.perf_counter() - started)
            if not all(done):
                raise RuntimeError(f"{sum(map(bool, done))} of {count} pages were put")
        for call in range(calls):
            self.client.remove(page_keys(seed + call, count))
        return {"seconds": seconds}

    def load(
        self, seed: int, count: int, size_bytes: int, seconds: float, get_percent: int, batches_max: int
    ) -> dict[str, Any]:
        """Puts and gets drawn at random for so long. Page i of every batch has the same content, written once: preparing it
        each time would be most of the load. Keys and checks stay out of a call's own time, not out of `wall_s`."""
        rng = random.Random(seed)
        sources = self.window(count, size_bytes)
        for i, address in enumerate(sources):
            self.write_page(address, 0, i, size_bytes)
        targets = self.window(count, size_bytes)
        batches = [page_keys(seed + i, count) for i in range(batches_max)]
        stored: list[int] = []
        answer: dict[str, Any] = {"put": [], "get": [], "done": 0, "missed": 0, "wrong_pages": 0}
        if get_percent:
            for i in range(min(4, batches_max)):
                self.client.put(batches[i], sources, size_bytes)
                stored.append(i)
        removing_s = 0.0
        cpu_s, started = time.process_time(), time.perf_counter()
        while time.perf_counter() - started < seconds:
            if stored and rng.randrange(100) < get_percent:
                self._loaded_get(batches[rng.choice(stored)], sources, targets, size_bytes, answer)
                continue
            if len(stored) == batches_max:
                removing = time.perf_counter()
                self.client.remove(batches[stored[0]])
                removing_s += time.perf_counter() - removing
                stored.append(stored.pop(0))
            else:
                stored.append(len(stored))
            before = time.perf_counter()
            done = self.client.put(batches[stored[-1]], sources, size_bytes)
            answer["put"].append(time.perf_counter() - before)
            answer["done"] += sum(map(bool, done))
            answer["missed"] += count - sum(map(bool, done))
        answer["wall_s"] = time.perf_counter() - started - removing_s
        answer["cpu_s"] = time.process_time() - cpu_s
        for i in stored:
            self.client.remove(batches[i])
        return answer

    def _loaded_get(
        self, keys: list[str], sources: list[int], targets: list[int], size_bytes: int, answer: dict[str, Any]
    ) -> None:
        for address in targets:
            ctypes.memset(address, POISON, STAMP_EVERY_BYTES)
        before = time.perf_counter()
        found = self.client.get(keys, targets, size_bytes)
        answer["get"].append(time.perf_counter() - before)
        for source, target, there in zip(sources, targets, found, strict=True):
            answer["done"] += bool(there)
            answer["missed"] += not there
            # The stamp of its first block says which page it is; all bytes are compared where calls are measured one by one.
            answer["wrong_pages"] += bool(there) and _memcmp(source, target, STAMP_EVERY_BYTES) != 0

    def fill(self, seed: int, count: int, size_bytes: int, batches: int) -> dict[str, Any]:
        """Touches the peer's memory: writes batches and removes them again."""
        addresses = self.window(count, size_bytes)
        for batch in range(batches):
            self.client.put(page_keys(seed + batch, count), addresses, size_bytes)
        for batch in range(batches):
            self.client.remove(page_keys(seed + batch, count))
        return {}

    def remove(self, seed: int, count: int) -> dict[str, Any]:
        self.client.remove(page_keys(seed, count))
        return {}

    @staticmethod
    def _timed(call: Any) -> dict[str, Any]:
        cpu_s = time.process_time()
        started = time.perf_counter()
        result = call()
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "cpu_s": time.process_time() - cpu_s, "done": sum(map(bool, result))}


def main() -> None:
    peer, connection = sys.argv[1], json.loads(sys.argv[2])
    client = PEERS[peer][1](connection)
    worker = Worker(client, client.allocate(int(connection["arena_bytes"])))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(worker, command.pop("verb"))(**command)
        print(json.dumps(answer), flush=True)
    client.close()


if __name__ == "__main__":
    main()
