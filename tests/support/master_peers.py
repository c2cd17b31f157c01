"""A client and a segment as a master sees them: real connections, scripted by the test. Every wait has a
deadline."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import control_pb2_grpc

from kvstore.common.config.master import MasterSettings
from kvstore.common.control_metadata import token_metadata
from kvstore.common.identity import canonical_json
from kvstore_client import protocol
from kvstore_client.protocol import Op, Status
from kvstore_client.protocol.journal import JournalGroup, JournalOp, encode_groups
from support import wire

TIMEOUT_S = 10.0


def settings(directory: Path, **changes: Any) -> MasterSettings:
    """A master on free loopback ports, durable under `directory`."""
    values: dict[str, Any] = {
        "directory_port": 0,
        "control_port": 0,
        "http_port": 0,
        "metadata": f"rocksdb://{directory}/metadata",
        **changes,
    }
    return MasterSettings(**values)


def fingerprints(count: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(16 * count)


class DirectoryPeer:
    """One connection to a directory port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.requests = 0
        self.map_epoch = 0

    @staticmethod
    async def connect(port: int) -> DirectoryPeer:
        return DirectoryPeer(*await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), TIMEOUT_S))

    @staticmethod
    async def greeted(port: int, token: str = "") -> DirectoryPeer:
        peer = await DirectoryPeer.connect(port)
        status, _ = await peer.call(Op.HELLO, protocol.HelloRequest(protocol.Role.CLIENT, token, "test"))
        assert status is Status.OK
        return peer

    def send(self, op: int, body: bytes) -> int:
        self.requests += 1
        self.writer.write(protocol.request_frame(op, self.requests, body))
        return self.requests

    async def receive(self) -> tuple[protocol.Header, protocol.ReplyPrefix, bytes]:
        header = protocol.Header.decode(
            await asyncio.wait_for(self.reader.readexactly(protocol.HEADER_BYTES), TIMEOUT_S)
        )
        body = await asyncio.wait_for(self.reader.readexactly(header.body_bytes), TIMEOUT_S)
        prefix, fields = protocol.decode_reply(body)
        self.map_epoch = prefix.map_epoch
        return header, prefix, fields

    async def call(self, op: int, message: Any) -> tuple[Status, bytes]:
        """(status, fields, or the text of a refusal)"""
        number = self.send(op, message if isinstance(message, bytes) else message.encode())
        header, prefix, fields = await self.receive()
        assert (header.op, header.request_id, header.is_reply) == (op, number, True)
        return prefix.status, fields if prefix.status is Status.OK else prefix.text.encode()

    async def open_namespace(self, **identity: Any) -> bytes:
        status, fields = await self.call(
            Op.OPEN_NAMESPACE, protocol.OpenNamespaceRequest(canonical_json(identity), "test")
        )
        assert status is Status.OK, fields
        return protocol.NamespaceReply.decode(fields).ns

    async def exists(self, ns: bytes, fps: bytes) -> list[bool]:
        status, fields = await self.call(Op.EXISTS, wire.ExistsRequest(ns, fps))
        assert status is Status.OK, fields
        return list(wire.ExistsReply.decode(fields).present)

    async def segment_map(self) -> tuple[protocol.MapRecord, ...]:
        status, fields = await self.call(Op.MAP, protocol.MapRequest())
        assert status is Status.OK
        return protocol.MapReply.decode(fields).segments

    async def ended(self) -> bool:
        """Whether the master closed the connection (what it sent before is thrown away)."""
        while True:
            try:
                if not await asyncio.wait_for(self.reader.read(1 << 16), TIMEOUT_S):
                    return True
            except ConnectionError:
                return True

    def close(self) -> None:
        self.writer.close()


class SegmentPeer:
    """One Attach stream, with its journal counted."""

    def __init__(self, port: int, number: int = 1, token: str = "") -> None:
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self.stub = control_pb2_grpc.ControlStub(self.channel)
        self.segment_id = bytes([number]) * 16
        self.pool_id = bytes([number + 100]) * 16
        self.metadata = token_metadata(token)
        self.last_seq = 0
        self.oldest_kept_seq = 1
        self.call: Any = None

    async def attach(self, **changes: Any) -> Any:
        """The Registered answer."""
        self.call = self.stub.Attach(metadata=self.metadata)
        await self.call.write(pb.SegmentMessage(register=self.register(**changes)))
        message = await self.read()
        assert message.WhichOneof("body") == "registered"
        return message.registered

    def register(self, **changes: Any) -> Any:
        values = {
            "protocol_version": protocol.VERSION_MAX,
            "segment_id": self.segment_id,
            "pool_id": self.pool_id,
            "host": "127.0.0.1",
            "tcp_port": 7450,
            "capacity_bytes": 1 << 30,
            "last_seq": self.last_seq,
            "oldest_kept_seq": self.oldest_kept_seq,
            **changes,
        }
        return pb.Register(**values)

    async def read(self) -> Any:
        return await asyncio.wait_for(self.call.read(), TIMEOUT_S)

    async def journal(self, ns: bytes, fps: bytes, op: JournalOp = JournalOp.ADD, length: int = 100) -> None:
        count = len(fps) // 16
        groups = encode_groups([JournalGroup(op, ns, fps, (length,) * count)])
        await self.send_batch(self.last_seq + 1, self.last_seq + count, groups)
        self.last_seq += count

    async def send_batch(self, first_seq: int, last_seq: int, groups: bytes) -> None:
        batch = pb.JournalBatch(first_seq=first_seq, last_seq=last_seq, groups=groups)
        await self.call.write(pb.SegmentMessage(journal=batch))

    async def acked(self, seq: int | None = None) -> None:
        """Until everything up to `seq` (default: all that was sent) is durable."""
        wanted = self.last_seq if seq is None else seq
        while True:
            message = await self.read()
            if message.WhichOneof("body") == "journal_ack" and message.journal_ack.durable_seq >= wanted:
                return

    async def heartbeat(self, **changes: Any) -> Any:
        values = {"segment_id": self.segment_id, "pool_id": self.pool_id, **changes}
        request = pb.HeartbeatRequest(**values)
        return await self.stub.Heartbeat(request, timeout=TIMEOUT_S, metadata=self.metadata)

    async def failure(self) -> grpc.aio.AioRpcError:
        """How the stream ends, when the master ends it with an error."""
        try:
            while await self.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError("the stream ended without an error")

    async def close(self) -> None:
        if self.call is not None:
            self.call.cancel()
        await self.channel.close()


async def until(condition: Any, what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Polls an async or plain condition until it is true; AssertionError naming `what`."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + timeout_s
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return
        assert loop.time() < ends_at, f"waited {timeout_s:g} s in vain: {what}"
        await asyncio.sleep(0.01)
