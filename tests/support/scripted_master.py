"""The master's side of the control service, with every decision in the test's hands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import control_pb2_grpc

from kvstore_client.protocol import VERSION_MAX
from kvstore_client.protocol.journal import JournalOp, decode_groups


class ScriptedMaster(control_pb2_grpc.ControlServicer):  # type: ignore[misc]
    """Keeps one segment's directory in memory.

    `acking` False holds acks back; `known` is what heartbeats are answered.
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
        self.hang_up_after_register = False
        self.answering = asyncio.Event()  # cleared: Register is taken, and not answered
        self.answering.set()
        self.registrations: list[Any] = []
        self.inventories = 0
        self.inventoried = 0  # entries of them
        self.leaving: list[str] = []
        self.heartbeats: list[Any] = []
        self.sends: asyncio.Queue[Any] = asyncio.Queue()
        self.port = 0
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listens on the port it had before, or on a free one."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        control_pb2_grpc.add_ControlServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        """Breaks every stream at once, as a crash would."""
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
        self.sends.put_nowait(pb.MasterMessage(journal_ack=pb.JournalAck(durable_seq=self.durable_seq)))

    async def Attach(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        registration = (await anext(requests)).register
        self.registrations.append(registration)
        if self.refuse_with is not None:
            await context.abort(self.refuse_with, "refused by the test")
        self.sends = asyncio.Queue()
        namespaces = list(self.current_namespaces)
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

    async def Heartbeat(self, request: Any, context: Any) -> Any:
        self.heartbeats.append(request)
        return pb.HeartbeatReply(known=self.known, map_epoch=1)

    async def _read(self, requests: AsyncIterator[Any]) -> None:
        async for message in requests:
            kind = message.WhichOneof("body")
            if kind == "journal":
                assert message.journal.first_seq == self.durable_seq + 1, "a hole in the journal"
                self._apply(message.journal.groups)
                self.durable_seq = message.journal.last_seq
            elif kind == "inventory":
                if message.inventory.first:
                    self.objects.clear()
                self._apply(message.inventory.groups)
                self.inventoried += sum(
                    len(group.lengths) for group in decode_groups(message.inventory.groups)
                )
                if not message.inventory.last:
                    continue
                self.inventories += 1
                self.durable_seq = message.inventory.last_seq
            elif kind == "leaving":
                self.leaving.append(message.leaving.reason)
                return
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
