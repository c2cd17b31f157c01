"""Clients of the directory, many in one process: each asks for what HiCache asks for, at a steady rate, over a connection of its own.

usage: python -m benchmarks.scale.clients JSON   (the fields of ClientLoad)

Prints a line "ready" when all are connected, then measures for as long as it was told, and prints its result as JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import cast

import uvloop

from benchmarks.scale.pages import FINGERPRINT_BYTES, fingerprints
from kvstore_client.protocol import HEADER, PREFIX, HelloRequest, Op, Role, request_frame, u32s

WARM_UP_S = 2.0


@dataclass(frozen=True)
class ClientLoad:
    port: int
    ns: str  # hex
    clients: int
    rate: float  # requests a second of each
    keys: int  # of a request
    batches: int  # pages of so many batches are there
    batch_pages: int
    seconds: float


@dataclass
class ClientResult:
    requests: int = 0
    wrong: int = 0  # refused, or a key not found
    latencies_us: list[float] = field(default_factory=list)  # from when a request was due to its reply
    late_us: list[float] = field(default_factory=list)  # how long after it was due this process sent it


class SimulatedClient(asyncio.Protocol):
    """Connects, greets, and asks. EXISTS and LOOKUP in turn, of pages that are all there."""

    def __init__(self, load: ClientLoad, frames: list[bytes], result: ClientResult) -> None:
        self._load = load
        self._frames = frames
        self._result = result
        self._buffer = bytearray()
        self._due: float | None = None
        self._turn = random.randrange(len(frames))
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.counts = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(request_frame(Op.HELLO, 0, HelloRequest(role=Role.CLIENT).encode()))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionError("the master hung up at HELLO"))

    def begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._next = loop.time() + random.random() / self._load.rate
        loop.call_at(self._next, self._ask)

    def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        if self._due is None:  # else the last one is not answered yet, and its latency counts on
            self._due = self._next
            self._turn = (self._turn + 1) % len(self._frames)
            self._transport.write(self._frames[self._turn])
            if self.counts:
                self._result.late_us.append((loop.time() - self._due) * 1e6)
        self._next = max(self._next + 1 / self._load.rate, loop.time())
        loop.call_at(self._next, self._ask)

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = bytes(self._buffer) + data
            self._buffer.clear()
        _, _, op, _, _, body_bytes, _ = (
            HEADER.unpack_from(data) if len(data) >= HEADER.size else (0, 0, 0, 0, 0, 1 << 30, 0)
        )
        if len(data) < HEADER.size + body_bytes:
            self._buffer += data
            return
        if op == Op.HELLO:
            self.greeted.set_result(None)
            return
        due, self._due = self._due, None
        if due is None or not self.counts:
            return
        self._result.requests += 1
        self._result.latencies_us.append((asyncio.get_running_loop().time() - due) * 1e6)
        status = PREFIX.unpack_from(data, HEADER.size)[0]
        fields = data[HEADER.size + PREFIX.size :]
        keys = self._load.keys
        if op == Op.EXISTS:
            found = int.from_bytes(fields[8:], "little") == (1 << keys) - 1
        else:
            found = b"\xff\xff\xff\xff" not in [fields[8 + 4 * i : 12 + 4 * i] for i in range(keys)]
        self._result.wrong += bool(status) or not found


def request_frames(load: ClientLoad, rng: random.Random) -> list[bytes]:
    """Some requests of keys from everywhere, to be asked again and again."""
    pools = [
        fingerprints(batch, load.batch_pages)
        for batch in rng.sample(range(load.batches), min(16, load.batches))
    ]
    frames = []
    for number in range(256):
        keys = []
        for _ in range(load.keys):
            pool = rng.choice(pools)
            at = rng.randrange(load.batch_pages) * FINGERPRINT_BYTES
            keys.append(pool[at : at + FINGERPRINT_BYTES])
        op, word = (Op.EXISTS, 0) if number % 2 else (Op.LOOKUP, 1)
        frames.append(request_frame(op, 1, bytes.fromhex(load.ns) + u32s([load.keys, word]) + b"".join(keys)))
    return frames


async def run(load: ClientLoad) -> ClientResult:
    loop = asyncio.get_running_loop()
    result = ClientResult()
    frames = request_frames(load, random.Random(1))
    clients = []
    for _ in range(load.clients):
        _, client = await loop.create_connection(
            lambda: SimulatedClient(load, frames, result), "127.0.0.1", load.port
        )
        clients.append(client)
    await asyncio.gather(*(client.greeted for client in clients))
    for client in clients:
        client.begin()
    await asyncio.sleep(WARM_UP_S)
    print("ready", flush=True)
    for client in clients:
        client.counts = True
    await asyncio.sleep(load.seconds)
    return result


def main() -> None:
    load = ClientLoad(**json.loads(sys.argv[1]))
    result = uvloop.run(run(load))
    used = time.process_time()
    print(json.dumps({**asdict(result), "cpu_s": used}), flush=True)


if __name__ == "__main__":
    main()
