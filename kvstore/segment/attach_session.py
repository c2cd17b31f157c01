"""One life of the Attach stream: registration, then journal up and acks down, until it breaks or we leave."""

from __future__ import annotations

import asyncio
import logging
import select
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from kvstore import __version__
from kvstore.common.control_metadata import token_metadata
from kvstore.common.logs import log_throttled
from kvstore.segment.errors import ClusterChanged, RegistrationRefused
from kvstore.segment.journal_pump import (
    Batch,
    Chunk,
    JournalProtocolError,
    JournalPump,
    JournalSource,
    PumpState,
)
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import control_pb2_grpc
from kvstore_client.protocol import VERSION_MAX

logger = logging.getLogger(__name__)

REGISTER_TIMEOUT_S = 3.0
LEAVE_TIMEOUT_S = 2.0


class AttachableStore(JournalSource, Protocol):
    """The part of SegmentStore that a session drives."""

    @property
    def journal_fd(self) -> int: ...

    @property
    def oldest_kept_seq(self) -> int: ...

    def namespaces(self) -> list[bytes]: ...

    def set_namespaces(self, current: list[bytes], known: list[bytes]) -> None: ...

    def retire_namespace(self, ns: bytes) -> None: ...


@dataclass(frozen=True)
class Registration:
    """What a segment tells a master about itself; the token goes with the call, not into the message."""

    segment_id: bytes
    pool_id: bytes
    host: str
    tcp_port: int
    unix_path: str
    capacity_bytes: int
    token: str = ""


class AttachSession:
    """Runs one stream on `channel`. `run` returns or raises when it is over; a session is not used twice."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        registration: Registration,
        store: AttachableStore,
        pump: JournalPump,
        on_registered: Callable[[Any], None],
        cluster_id: bytes,
    ) -> None:
        """`cluster_id`: the cluster that the pool's content belongs to; empty while it belongs to none."""
        self._stub = control_pb2_grpc.ControlStub(channel)
        self._registration = registration
        self._store = store
        self._pump = pump
        self._on_registered = on_registered
        self._cluster_id = cluster_id
        self._wake = asyncio.Event()
        self._leaving: str | None = None
        self._retired_barrier: int | None = None  # to be confirmed

    def leave(self, reason: str) -> None:
        """Says goodbye: `run` sends it after what it is sending now, waits for the master to hang up, and
        returns.
        """
        self._leaving = reason
        self._wake.set()

    async def run(self) -> None:
        """Registers and pumps.

        Raises grpc.RpcError, TimeoutError, RegistrationRefused, JournalProtocolError, or ClusterChanged
        before anything of the store is touched.
        """
        call = self._stub.Attach(metadata=token_metadata(self._registration.token))
        # A namespace opened after the master made its list may hold objects here before the list arrives: only
        # those that were here before we asked can be judged by it.
        known = self._store.namespaces()
        try:
            registered = await asyncio.wait_for(self._register(call), REGISTER_TIMEOUT_S)
            if self._cluster_id and registered.cluster_id != self._cluster_id:
                raise ClusterChanged(
                    f"the master is of cluster {registered.cluster_id.hex()}, this pool of "
                    f"{self._cluster_id.hex()}"
                )
            # Before the journal moves: an object of a retired namespace must not be announced as if it were
            # current.
            self._store.set_namespaces(list(registered.current_namespaces), known)
            self._retire(registered.cleared_namespaces, registered.barrier)
            self._pump.attached(registered.durable_seq, registered.need_inventory)
            self._on_registered(registered)
            await self._converse(call)
        finally:
            self._pump.detached()
            call.cancel()

    async def _register(self, call: Any) -> Any:
        own = self._registration
        message = pb.Register(
            protocol_version=VERSION_MAX,
            segment_id=own.segment_id,
            pool_id=own.pool_id,
            host=own.host,
            tcp_port=own.tcp_port,
            unix_path=own.unix_path,
            capacity_bytes=own.capacity_bytes,
            last_seq=self._store.last_seq,
            oldest_kept_seq=self._store.oldest_kept_seq,
            software_version=__version__,
        )
        await call.write(pb.SegmentMessage(register=message))
        reply = await call.read()
        if reply is grpc.aio.EOF:
            raise RegistrationRefused(f"the master hung up: {await call.details() or 'no reason given'}")
        if reply.WhichOneof("body") != "registered":
            raise JournalProtocolError(
                f"the master answered the registration with {reply.WhichOneof('body')}"
            )
        if reply.registered.protocol_version != VERSION_MAX:
            raise RegistrationRefused(
                f"the master speaks control protocol {reply.registered.protocol_version}, this segment "
                f"{VERSION_MAX}: run the same release of kvstore on both"
            )
        return reply.registered

    async def _converse(self, call: Any) -> None:
        reading = asyncio.create_task(self._read(call), name="attach-read")
        pumping = asyncio.create_task(self._write(call), name="attach-write")
        try:
            await asyncio.wait({reading, pumping}, return_when=asyncio.FIRST_COMPLETED)
            if pumping.done() and not reading.done() and pumping.exception() is None:
                # We left: the master ends the stream once it has taken note.
                await asyncio.wait({reading}, timeout=LEAVE_TIMEOUT_S)
        finally:
            for task in (reading, pumping):
                task.cancel()
            results = await asyncio.gather(reading, pumping, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _read(self, call: Any) -> None:
        while (message := await call.read()) is not grpc.aio.EOF:
            kind = message.WhichOneof("body")
            if kind == "journal_ack":
                self._pump.acked(message.journal_ack.durable_seq)
                self._wake.set()
            elif kind == "retire_namespaces":
                self._retire(message.retire_namespaces.namespaces, message.retire_namespaces.barrier)
                self._wake.set()
            elif kind == "inventory_request":
                self._pump.inventory_requested()
                self._wake.set()
            elif kind == "entries_refused":
                refused = message.entries_refused
                self._pump.entries_refused += refused.entries
                log_throttled(
                    logger,
                    logging.ERROR,
                    "journal_entries_refused",
                    refused.reason,
                    entries=refused.entries,
                    last_seq=refused.last_seq,
                    reason=refused.reason,
                )
            # Anything else comes from a newer master: ignored, as the protocol asks.

    def _retire(self, namespaces: Iterable[bytes], barrier: int) -> None:
        for ns in namespaces:
            self._store.retire_namespace(ns)
        self._retired_barrier = barrier

    async def _write(self, call: Any) -> None:
        loop = asyncio.get_running_loop()
        journal_fd = self._store.journal_fd
        due = select.poll()
        due.register(journal_fd, select.POLLIN)
        try:
            while self._leaving is None:
                if self._retired_barrier is not None:
                    barrier, self._retired_barrier = self._retired_barrier, None
                    await call.write(pb.SegmentMessage(retired=pb.Retired(barrier=barrier)))
                # Only when the journal says that it is due: draining after each message would send the runs of
                # a batch one by one, and a message costs both sides much the same whatever it carries.
                inventory = self._pump.state is PumpState.INVENTORY
                message = self._pump.next_message() if inventory or due.poll(0) else None
                if message is not None:
                    await call.write(_encode(message))
                    continue
                self._wake.clear()
                # The descriptor stays readable while the window is full; listening to it then would spin.
                if not self._pump.window_full:
                    loop.add_reader(journal_fd, self._wake.set)
                await self._wake.wait()
                loop.remove_reader(journal_fd)
            await call.write(pb.SegmentMessage(leaving=pb.Leaving(reason=self._leaving)))
            await call.done_writing()
        finally:
            loop.remove_reader(journal_fd)


def _encode(message: Batch | Chunk) -> Any:
    if isinstance(message, Batch):
        return pb.SegmentMessage(
            journal=pb.JournalBatch(
                first_seq=message.first_seq, last_seq=message.last_seq, groups=message.groups
            )
        )
    return pb.SegmentMessage(
        inventory=pb.InventoryChunk(
            last_seq=message.last_seq, groups=message.groups, first=message.first, last=message.last
        )
    )
