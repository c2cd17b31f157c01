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
from kvstore_client.protocol.link import (
    AckMessage,
    HeartbeatMessage,
    InventoryMessage,
    JournalMessage,
    LinkRequest,
)
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
    """A segment of the previous release, with its journal counted: all that it says is on one Attach stream, but for heartbeats,
    which are calls of their own."""

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

    async def send_chunk(self, last_seq: int, groups: bytes, first: bool, last: bool) -> None:
        chunk = pb.InventoryChunk(last_seq=last_seq, groups=groups, first=first, last=last)
        await self.call.write(pb.SegmentMessage(inventory=chunk))

    async def asked_for_inventory(self) -> None:
        """The next thing that the master says is that it wants one."""
        assert (await self.read()).WhichOneof("body") == "inventory_request"

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


class LinkedPeer(SegmentPeer):
    """A segment of this release: journal, acks and heartbeats are on a link to the directory port."""

    def __init__(self, port: int, number: int = 1, token: str = "") -> None:
        super().__init__(port, number, token)
        self.token = token
        self.link: DirectoryPeer | None = None
        self.taken = 0

    def register(self, **changes: Any) -> Any:
        return super().register(**{"makes_link": True, **changes})

    async def attach(self, *, link: bool = True, **changes: Any) -> Any:
        """The Registered answer; `link` False leaves the link to the test."""
        registered = await super().attach(**changes)
        if self.link is not None:
            self.link.close()
        if link:
            self.link = await self.greeted(registered.link_port)
            status, text = await self.link.call(Op.LINK, LinkRequest(registered.link_token))
            assert status is Status.OK, text
        return registered

    async def greeted(self, port: int) -> DirectoryPeer:
        """A connection that has said HELLO as a segment."""
        peer = await DirectoryPeer.connect(port)
        hello = protocol.HelloRequest(protocol.Role.SEGMENT, self.token, "test")
        status, text = await peer.call(Op.HELLO, hello)
        assert status is Status.OK, text
        return peer

    async def notice(self) -> tuple[int, bytes]:
        """(op, body) of what the master says next, unasked."""
        assert self.link is not None
        header = protocol.Header.decode(
            await asyncio.wait_for(self.link.reader.readexactly(protocol.HEADER_BYTES), TIMEOUT_S)
        )
        assert not header.is_reply
        return header.op, await self.link.reader.readexactly(header.body_bytes)

    async def send_batch(self, first_seq: int, last_seq: int, groups: bytes) -> None:
        assert self.link is not None
        self.link.send(Op.JOURNAL, JournalMessage(first_seq, last_seq, groups).encode())

    async def send_chunk(self, last_seq: int, groups: bytes, first: bool, last: bool) -> None:
        assert self.link is not None
        self.link.send(Op.INVENTORY, InventoryMessage(last_seq, groups, first, last).encode())

    async def asked_for_inventory(self) -> None:
        while (said := await self.notice())[0] == Op.ACK:
            pass
        assert said == (Op.REQUEST_INVENTORY, b"")

    async def acked(self, seq: int | None = None) -> None:
        wanted = self.last_seq if seq is None else seq
        while True:
            op, body = await self.notice()
            if op == Op.ACK:
                ack = AckMessage.decode(body)
                self.taken = ack.taken
                if ack.durable_seq >= wanted:
                    return

    async def heartbeat(self, **changes: Any) -> Any:
        """By the link while there is one; nothing else may be under way on it."""
        if self.link is None or self.link.reader.at_eof():
            return await super().heartbeat(**changes)
        values = {"used_bytes": 0, "object_count": 0, **changes}
        status, _ = await self.link.call(Op.HEARTBEAT, HeartbeatMessage(**values))
        return pb.HeartbeatReply(known=status is Status.OK, map_epoch=self.link.map_epoch)

    async def close(self) -> None:
        if self.link is not None:
            self.link.close()
        await super().close()


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
