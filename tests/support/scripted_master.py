"""The master's side of the control service and of links, with every decision in the test's hands."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import grpc
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import control_pb2_grpc

from kvstore.common.control_metadata import CLUSTER_KEY
from kvstore_client import protocol
from kvstore_client.protocol import VERSION_MAX, Op, Status
from kvstore_client.protocol.journal import JournalOp, decode_groups
from kvstore_client.protocol.link import (
    AckMessage,
    HeartbeatMessage,
    InventoryMessage,
    JournalMessage,
    LinkRequest,
)


class ScriptedMaster(control_pb2_grpc.ControlServicer):  # type: ignore[misc]
    """Keeps one segment's directory in memory.

    `acking` False holds acks back; `known` False refuses the heartbeats of a link.
    """

    def __init__(self) -> None:
        self.objects: dict[bytes, int] = {}
        self.durable_seq = 0
        self.acking = True
        self.known = True
        self.need_inventory = False
        self.cluster_id = b"c" * 16
        self.current_namespaces: list[bytes] = []
        self.refuse_with: grpc.StatusCode | None = None
        self.checks_cluster = True
        self.hang_up_after_register = False
        self.answering = asyncio.Event()  # cleared: Register is taken, and not answered
        self.answering.set()
        self.registrations: list[Any] = []
        self.inventories = 0
        self.inventoried = 0  # entries of them
        self.leaving: list[str] = []
        self.away: list[str] = []
        self.retired: list[int] = []  # barriers that the segment has confirmed
        self.heartbeats: list[Any] = []  # by gRPC
        self.link_heartbeats: list[HeartbeatMessage] = []
        self.links = 0
        self.has_links = True  # False: a master of the previous release
        self.sends: asyncio.Queue[Any] = asyncio.Queue()
        self.port = 0
        self._server: grpc.aio.Server | None = None
        self._link_server: asyncio.Server | None = None
        self._token = b""
        self._link: asyncio.StreamWriter | None = None
        self._taken = 0

    async def start(self) -> None:
        """Listens on the port it had before, or on a free one."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        control_pb2_grpc.add_ControlServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._link_server = await asyncio.start_server(self._serve_link, "127.0.0.1", 0)
        await self._server.start()

    async def stop(self) -> None:
        """Breaks every stream at once, as a crash would."""
        if self._link_server is not None:
            self._link_server.close()
            self._link_server = None
        if self._link is not None:
            self._link.transport.abort()
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def hang_up(self) -> None:
        """Ends the stream of now, and nothing else."""
        self.sends.put_nowait(None)

    def allow_acks(self) -> None:
        self.acking = True
        self.notify(Op.ACK, AckMessage(self.durable_seq, self._taken).encode())

    def notify(self, op: int, body: bytes) -> None:
        """Says something on the link of now."""
        assert self._link is not None, "no segment has a link"
        self._link.write(protocol.request_frame(op, 0, body))

    async def Attach(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        registration = (await anext(requests)).register
        self.registrations.append(registration)
        if self.refuse_with is not None:
            await context.abort(self.refuse_with, "refused by the test")
        if self.checks_cluster and registration.expected_cluster_id not in (b"", self.cluster_id):
            metadata = ((CLUSTER_KEY, self.cluster_id.hex()),)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another cluster", metadata)
        self.sends = asyncio.Queue()
        namespaces = list(self.current_namespaces)
        self._token = secrets.token_bytes(16)
        port = self._link_server.sockets[0].getsockname()[1] if self._link_server is not None else 0
        await self.answering.wait()
        yield pb.MasterMessage(
            registered=pb.Registered(
                protocol_version=VERSION_MAX,
                segment_index=0,
                durable_seq=self.durable_seq,
                need_inventory=self.need_inventory,
                heartbeat_interval_ms=50,
                cluster_id=self.cluster_id,
                current_namespaces=namespaces,
                link_port=port if self.has_links else 0,
                link_token=self._token,
            )
        )
        if self.hang_up_after_register:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "hung up by the test")
        reading = asyncio.create_task(self._read(requests))
        try:
            while True:
                sending = asyncio.create_task(self.sends.get())
                await asyncio.wait({reading, sending}, return_when=asyncio.FIRST_COMPLETED)
                if not sending.done():
                    sending.cancel()
                    reading.result()
                    return
                if sending.result() is None:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "hung up by the test")
                yield sending.result()
        finally:
            reading.cancel()
            if self._link is not None:
                self._link.close()

    async def Heartbeat(self, request: Any, context: Any) -> Any:
        self.heartbeats.append(request)
        return pb.HeartbeatReply(known=False, map_epoch=1)

    async def _read(self, requests: AsyncIterator[Any]) -> None:
        async for message in requests:
            kind = message.WhichOneof("body")
            assert kind in ("leaving", "away", "retired"), "the journal comes by the link"
            if kind == "retired":
                self.retired.append(message.retired.barrier)
                continue
            if kind == "away":
                self.away.append(message.away.reason)
            else:
                self.leaving.append(message.leaving.reason)
            return

    async def _serve_link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                header = protocol.Header.decode(await reader.readexactly(protocol.HEADER_BYTES))
                self._take(header, await reader.readexactly(header.body_bytes), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _take(self, header: protocol.Header, body: bytes, writer: asyncio.StreamWriter) -> None:
        def answer(fields: bytes = b"", status: Status = Status.OK) -> None:
            prefix = protocol.ReplyPrefix(status)
            writer.write(protocol.reply_frame(header.op, header.request_id, prefix, fields))

        if header.op == Op.HELLO:
            assert protocol.HelloRequest.decode(body).role == protocol.Role.SEGMENT
            answer(protocol.HelloReply(VERSION_MAX, self.cluster_id).encode())
        elif header.op == Op.LINK:
            assert LinkRequest.decode(body).token == self._token
            self._link, self._taken = writer, 0
            self.links += 1
            answer()
        elif header.op == Op.HEARTBEAT:
            self.link_heartbeats.append(HeartbeatMessage.decode(body))
            answer(status=Status.OK if self.known else Status.UNAVAILABLE)
        elif header.op == Op.JOURNAL:
            batch = JournalMessage.decode(body)
            assert batch.first_seq == self.durable_seq + 1, "a hole in the journal"
            self._apply(batch.groups)
            self._took(batch.last_seq)
        else:
            assert header.op == Op.INVENTORY
            chunk = InventoryMessage.decode(body)
            if chunk.first:
                self.objects.clear()
            self._apply(chunk.groups)
            self.inventoried += sum(len(group.lengths) for group in decode_groups(chunk.groups))
            self.inventories += chunk.last
            self._took(chunk.last_seq if chunk.last else self.durable_seq)

    def _took(self, durable_seq: int) -> None:
        self._taken += 1
        self.durable_seq = durable_seq
        if self.acking:
            self.allow_acks()

    def _apply(self, groups: bytes) -> None:
        for group in decode_groups(groups):
            for i, length in enumerate(group.lengths):
                fingerprint = group.fingerprints[16 * i : 16 * i + 16]
                if group.op == JournalOp.ADD:
                    self.objects[fingerprint] = length
                else:
                    self.objects.pop(fingerprint, None)
