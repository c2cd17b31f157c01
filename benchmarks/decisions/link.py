"""0021, the link of a segment: what a journal batch and a heartbeat take by it, and by the gRPC calls of segments that have none.

Segments, played by this process, tell one master, a process of its own: one sends batches of 128 objects, each when the one before
is acknowledged; then 64 send a heartbeat each, at once. CPU is the master's, all its threads with their system calls."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import grpc
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import control_pb2_grpc

from benchmarks.decisions.base import BATCH, Table
from benchmarks.peers.base import Servers
from benchmarks.peers.kvstore import announced
from kvstore.common.identity import canonical_json
from kvstore_client import protocol
from kvstore_client.protocol import Op, Status
from kvstore_client.protocol.journal import JournalGroup, JournalOp, encode_groups
from kvstore_client.protocol.link import AckMessage, HeartbeatMessage, JournalMessage, LinkRequest

STORES = ("memory", "rocksdb")
TIMEOUT_S = 10.0
SEGMENTS = 64


def measure(repetitions: int) -> Table:
    """The median latency of `repetitions` x 100 batches, and the master's CPU a batch and a heartbeat."""
    count = repetitions * 100
    rows = []
    for store in STORES:
        for name, kind in (("gRPC (previous release)", _GrpcSegment), ("link", _LinkedSegment)):
            with _master(store) as master, contextlib.ExitStack() as stack:
                segments = [stack.enter_context(contextlib.closing(kind(master, i))) for i in range(SEGMENTS)]
                latency_us, batch_us = _timed(segments[0].journal, master, count)
                _, round_us = _timed(functools.partial(_beat, segments), master, repetitions * 10)
            rows.append([store, name, *(f"{us:.0f}" for us in (latency_us, batch_us, round_us / SEGMENTS))])
    head = ["metadata", "way", "journal -> ack, us", "CPU a batch, us", "CPU a heartbeat, us"]
    return Table(f"a journal batch of {BATCH} objects, and {SEGMENTS} heartbeats at once", head, rows)


def _beat(segments: Sequence[_GrpcSegment | _LinkedSegment]) -> None:
    for segment in segments:
        segment.send_heartbeat()
    for segment in segments:
        segment.await_heartbeat()


class _Master(Servers):
    """`kvstore master` on loopback."""

    name = "kvstore"
    metadata = ""
    ports: dict[str, Any]

    def start(self) -> None:
        self.ports = announced(
            self, "listening", "master", f"--metadata={self.metadata}", "--directory-port=0", "--control-port=0",
            "--http-port=0",
        )  # fmt: skip

    def connection(self) -> dict[str, Any]:
        return self.ports

    def cpu_us(self) -> float:
        tasks = Path(f"/proc/{self.pids()[0]}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e3


@contextlib.contextmanager
def _master(store: str) -> Iterator[_Master]:
    with tempfile.TemporaryDirectory(prefix="kvstore-bench-", dir=".") as directory:
        master = _Master(Path(directory), 0)
        master.metadata = (
            "memory://" if store == "memory" else f"rocksdb://{Path(directory).absolute()}/metadata"
        )
        try:
            master.start()
            yield master
        finally:
            master.stop()


def _timed(call: Callable[[], None], master: _Master, count: int) -> tuple[float, float]:
    """(median us a call, us of the master's CPU a call)"""
    for _ in range(20):
        call()
    times, cpu_us = [], master.cpu_us()
    for _ in range(count):
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1e6)
    return median(times), (master.cpu_us() - cpu_us) / count


class _Frames:
    """A connection to the directory port."""

    def __init__(self, port: int, role: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.call(Op.HELLO, protocol.HelloRequest(role).encode())

    def send(self, op: int, body: bytes) -> None:
        self._socket.sendall(protocol.request_frame(op, 1, body))

    def receive(self) -> tuple[int, bytes]:
        header = protocol.Header.decode(self._exactly(protocol.HEADER_BYTES))
        return header.op, self._exactly(header.body_bytes)

    def call(self, op: int, body: bytes) -> bytes:
        self.send(op, body)
        prefix, fields = protocol.decode_reply(self.receive()[1])
        assert prefix.status is Status.OK, prefix
        return fields

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            assert piece, "the master hung up"
            data += piece
        return data


class _Segment:
    """What both ways have in common: registration, and batches of new objects."""

    makes_link = False

    def __init__(self, master: _Master, number: int) -> None:
        client = _Frames(master.ports["directory_port"], protocol.Role.CLIENT)
        opened = client.call(
            Op.OPEN_NAMESPACE, protocol.OpenNamespaceRequest(canonical_json({"model": "m"})).encode()
        )
        self._ns = protocol.NamespaceReply.decode(opened).ns
        client.close()
        self._channel = grpc.insecure_channel(f"127.0.0.1:{master.ports['control_port']}")
        self._stub = control_pb2_grpc.ControlStub(self._channel)
        self._up: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._down = self._stub.Attach(iter(self._up.get, None))
        self._id = {"segment_id": b"s" * 15 + bytes([number]), "pool_id": b"p" * 15 + bytes([number])}
        register = pb.Register(
            protocol_version=protocol.VERSION_MAX,
            host="127.0.0.1",
            tcp_port=7450,
            capacity_bytes=1 << 40,
            makes_link=self.makes_link,
            **self._id,
        )
        self._up.put(pb.SegmentMessage(register=register))
        self.registered = next(self._down).registered
        self._seq = 0

    def _batch(self) -> tuple[int, int, bytes]:
        first, self._seq = self._seq + 1, self._seq + BATCH
        group = JournalGroup(JournalOp.ADD, self._ns, os.urandom(16 * BATCH), (65536,) * BATCH)
        return first, self._seq, encode_groups([group])

    def close(self) -> None:
        self._up.put(None)
        self._channel.close()


class _GrpcSegment(_Segment):
    def journal(self) -> None:
        first, last, groups = self._batch()
        self._up.put(
            pb.SegmentMessage(journal=pb.JournalBatch(first_seq=first, last_seq=last, groups=groups))
        )
        while next(self._down).journal_ack.durable_seq < last:
            pass

    def send_heartbeat(self) -> None:
        self._beating = self._stub.Heartbeat.future(
            pb.HeartbeatRequest(used_bytes=1, object_count=1, **self._id)
        )

    def await_heartbeat(self) -> None:
        assert self._beating.result(TIMEOUT_S).known


class _LinkedSegment(_Segment):
    makes_link = True

    def __init__(self, master: _Master, number: int) -> None:
        super().__init__(master, number)
        self._link = _Frames(self.registered.link_port, protocol.Role.SEGMENT)
        self._link.call(Op.LINK, LinkRequest(self.registered.link_token).encode())

    def journal(self) -> None:
        first, last, groups = self._batch()
        self._link.send(Op.JOURNAL, JournalMessage(first, last, groups).encode())
        while AckMessage.decode(self._link.receive()[1]).durable_seq < last:
            pass

    def send_heartbeat(self) -> None:
        self._link.send(Op.HEARTBEAT, HeartbeatMessage(1, 1).encode())

    def await_heartbeat(self) -> None:
        assert protocol.decode_reply(self._link.receive()[1])[0].status is Status.OK

    def close(self) -> None:
        self._link.close()
        super().close()
