"""Segments, many in one process: each registers, makes its link, journals pages that it doesn't have, and sends heartbeats.

usage: python -m benchmarks.scale.segments JSON   (the fields of SegmentLoad)

Takes a line of JSON each on stdin and answers with one:
  {"grow": [first_batch, batches, pages_a_batch]}       all of it as fast as the master takes it; answers when all is durable
  {"trickle": [first_batch, messages_a_second, pages_a_message, seconds]}   a steady rate; answers when it is over
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import uvloop
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import control_pb2_grpc

from benchmarks.scale.pages import added
from kvstore_client import protocol
from kvstore_client.protocol import VERSION_MAX, Op, Status
from kvstore_client.protocol.link import AckMessage, HeartbeatMessage, JournalMessage, LinkRequest

CAPACITY_BYTES = 1 << 40
CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
UNACKED_MESSAGES_MAX = 4  # of a segment, as its window allows


@dataclass(frozen=True)
class SegmentLoad:
    port: int  # of the control service
    ns: str  # hex
    segments: int


class SimulatedSegment:
    def __init__(self, number: int, load: SegmentLoad) -> None:
        self._id = bytes([0x5E, number & 0xFF, number >> 8]) + bytes(13)
        self._number = number
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{load.port}", options=CHANNEL_OPTIONS)
        self._stub = control_pb2_grpc.ControlStub(self._channel)
        self._up: asyncio.Queue[Any] = asyncio.Queue()
        self._link: asyncio.StreamWriter
        self._room = asyncio.Semaphore(UNACKED_MESSAGES_MAX)
        self._unacked: list[int] = []
        self._sent_seq = self.durable_seq = 0
        self._acked = asyncio.Event()
        self.registered: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Registers, then takes acknowledgements until it is cancelled."""
        register = pb.Register(
            protocol_version=VERSION_MAX,
            segment_id=self._id,
            pool_id=self._id,
            host="127.0.0.1",
            tcp_port=1024 + self._number,
            capacity_bytes=CAPACITY_BYTES,
            oldest_kept_seq=1,
            software_version="scale",
            makes_link=True,
        )
        self._up.put_nowait(pb.SegmentMessage(register=register))
        stream = self._stub.Attach(self._messages())
        registered = (await stream.read()).registered
        reader, self._link = await asyncio.open_connection("127.0.0.1", registered.link_port)
        hello = protocol.HelloRequest(protocol.Role.SEGMENT, name="scale")
        self._send(Op.HELLO, hello.encode())
        self._send(Op.LINK, LinkRequest(registered.link_token).encode())
        while True:
            header = protocol.Header.decode(await reader.readexactly(protocol.HEADER_BYTES))
            body = await reader.readexactly(header.body_bytes)
            if header.op == Op.ACK:
                self._take_ack(AckMessage.decode(body).durable_seq)
            elif header.is_reply:
                prefix, _ = protocol.decode_reply(body)
                assert prefix.status is Status.OK, prefix
                if header.op == Op.LINK:
                    self.registered.set_result(registered.heartbeat_interval_ms)

    async def _messages(self) -> AsyncIterator[Any]:
        while True:
            yield await self._up.get()

    def _send(self, op: int, body: bytes) -> None:
        self._link.write(protocol.request_frame(op, 1, body))

    def _take_ack(self, durable_seq: int) -> None:
        self.durable_seq = durable_seq
        while self._unacked and self._unacked[0] <= durable_seq:
            self._unacked.pop(0)
            self._room.release()
        self._acked.set()

    async def journal(self, groups: bytes, entries: int) -> None:
        """Sends a message, once its window has room."""
        await self._room.acquire()
        first, self._sent_seq = self._sent_seq + 1, self._sent_seq + entries
        self._unacked.append(self._sent_seq)
        self._send(Op.JOURNAL, JournalMessage(first, self._sent_seq, groups).encode())

    async def all_durable(self) -> None:
        while self.durable_seq < self._sent_seq:
            self._acked.clear()
            await self._acked.wait()

    async def beat(self, interval_s: float) -> None:
        """For ever. Not all at the same time."""
        await asyncio.sleep(interval_s * (self._number % 50) / 50)
        while True:
            used_bytes = self.durable_seq * 65_536 % CAPACITY_BYTES
            self._send(Op.HEARTBEAT, HeartbeatMessage(used_bytes, self.durable_seq).encode())
            await asyncio.sleep(interval_s)


class SimulatedSegments:
    def __init__(self, load: SegmentLoad) -> None:
        self._ns = bytes.fromhex(load.ns)
        self._segments = [SimulatedSegment(number, load) for number in range(load.segments)]
        self._tasks: list[asyncio.Task[None]] = []

    async def attach(self) -> None:
        self._tasks = [asyncio.create_task(segment.run()) for segment in self._segments]
        waiting = asyncio.gather(*(segment.registered for segment in self._segments))
        over = asyncio.gather(*self._tasks)
        await asyncio.wait((waiting, over), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise RuntimeError("a segment's stream ended before it was registered") from over.exception()
        self._tasks += [
            asyncio.create_task(segment.beat(interval_ms / 1000))
            for segment, interval_ms in zip(self._segments, waiting.result(), strict=True)
        ]

    async def grow(self, first_batch: int, batches: int, pages: int) -> None:
        async def share(number: int) -> None:
            segment = self._segments[number]
            for batch in range(first_batch + number, first_batch + batches, len(self._segments)):
                await segment.journal(await asyncio.to_thread(added, self._ns, batch, 0, pages), pages)
            await segment.all_durable()

        await asyncio.gather(*(share(number) for number in range(len(self._segments))))

    async def trickle(self, first_batch: int, rate: float, pages: int, seconds: float) -> None:
        began = time.monotonic()
        for turn in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + turn / rate - time.monotonic()))
            segment = self._segments[turn % len(self._segments)]
            await segment.journal(added(self._ns, first_batch + turn, 0, pages), pages)

    def check(self) -> None:
        """Raises what has ended one of them."""
        for task in self._tasks:
            if task.done():
                task.result()
                raise RuntimeError("the master has ended a stream")


async def run(load: SegmentLoad) -> None:
    segments = SimulatedSegments(load)
    began = time.monotonic()
    await segments.attach()
    print(json.dumps({"attached_s": time.monotonic() - began}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        ((what, arguments),) = json.loads(line).items()
        began = time.monotonic()
        await (segments.grow if what == "grow" else segments.trickle)(*arguments)
        segments.check()
        print(json.dumps({"seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    uvloop.run(run(SegmentLoad(**json.loads(sys.argv[1]))))
