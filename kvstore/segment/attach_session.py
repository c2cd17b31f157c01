"""One session with a master: registration by gRPC, then a link that carries journal, inventory and heartbeats, until either is
over or we leave."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from kvstore import __version__
from kvstore.common.control_metadata import refusing_cluster, token_metadata
from kvstore.common.logs import log_throttled
from kvstore.segment.answers import KeepingStore, answer_to
from kvstore.segment.copying import Copier, CopyOrders
from kvstore.segment.errors import ClusterChanged, LinkLost, RegistrationRefused
from kvstore.segment.heartbeat import HeartbeatCounters
from kvstore.segment.journal_pump import JournalProtocolError, JournalPump
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import control_pb2_grpc
from kvstore_client._native import JournalLink
from kvstore_client.address import Address
from kvstore_client.protocol import NAMESPACE_BYTES, VERSION_MAX

logger = logging.getLogger(__name__)

REGISTER_TIMEOUT_S = 3.0
LEAVE_TIMEOUT_S = 2.0
# When the link breaks, the stream mostly ends too, and says why in better words.
REASON_TIMEOUT_S = 0.2


class AttachableStore(KeepingStore, Protocol):
    """The part of SegmentStore that a session drives; the link has the rest."""

    @property
    def last_seq(self) -> int: ...

    @property
    def oldest_kept_seq(self) -> int: ...

    def namespaces(self) -> list[bytes]: ...

    def set_namespaces(self, current: list[bytes], known: list[bytes]) -> None: ...

    def retire_namespace(self, ns: bytes) -> None: ...

    def set_quotas(self, limits: list[tuple[int, list[bytes]]]) -> None: ...

    @property
    def cluster_id(self) -> bytes: ...

    def set_cluster_id(self, cluster_id: bytes) -> None: ...


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
    """Runs one session with the master at `address`. `run` returns or raises when it is over; a session is not used twice."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        address: Address,
        registration: Registration,
        store: AttachableStore,
        pump: JournalPump,
        on_linked: Callable[[Any], None],
        cluster_id: bytes,
        heartbeats: HeartbeatCounters,
        copier: Copier | None = None,
    ) -> None:
        """`cluster_id`: the cluster that the pool's content belongs to; empty while it belongs to none. `on_linked` gets the
        answer to the registration, once what is journalled is being sent. `copier`: carries out copy orders; None: it takes none."""
        self._stub = control_pb2_grpc.ControlStub(channel)
        self._address = address
        self._registration = registration
        self._store = store
        self._pump = pump
        self._on_linked = on_linked
        self._cluster_id = cluster_id
        self._heartbeats = heartbeats
        self._copier = copier
        self._link: JournalLink | None = None
        self._call: Any = None  # while it lasts
        self.drain_told: Any = None  # the newest pb.DrainTold
        self._writing = asyncio.Lock()  # one message at a time goes up the stream
        self._goodbye: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def heartbeats_sent(self) -> int:
        """By the link of now; what one that is over has sent is in the counters."""
        return self._link.heartbeats_sent if self._link is not None else 0

    def leave(self, reason: str, keeps_pool: bool = False) -> None:
        """Says goodbye: `run` sends it, waits for the master to hang up, and returns. `keeps_pool`: the pages stay in the
        directory, for another process that is to go on with them."""
        if not self._goodbye.done():
            away, leaving = pb.Away(reason=reason), pb.Leaving(reason=reason)
            self._goodbye.set_result(
                pb.SegmentMessage(away=away) if keeps_pool else pb.SegmentMessage(leaving=leaving)
            )

    async def ask_drain(self) -> None:
        """Says that this segment wants to be drained; the answer is in `drain_told` some time later."""
        if self._call is not None:
            with contextlib.suppress(grpc.RpcError, RegistrationRefused):  # whoever runs the session says so
                await self._send(self._call, pb.SegmentMessage(drain_me=pb.DrainMe()))

    async def run(self) -> None:
        """Registers, links, and lasts as long as both do.

        Raises grpc.RpcError, TimeoutError, RegistrationRefused, JournalProtocolError, LinkLost, or ClusterChanged
        before anything of the store is touched.
        """
        call = self._stub.Attach(metadata=token_metadata(self._registration.token))
        # A namespace opened after the master made its list may hold objects here before the list arrives: only
        # those that were here before we asked can be judged by it.
        known = self._store.namespaces()
        try:
            registered = await asyncio.wait_for(self._register(call), REGISTER_TIMEOUT_S)
            self._limit(registered.quotas.limits)  # before anything is served
            # Before the journal moves: an object of a retired namespace must not be announced as if it were current, and
            # nothing be told to a cluster that a later process would not know as its own.
            try:
                self._store.set_namespaces(list(registered.current_namespaces), known)
                self._store.set_cluster_id(registered.cluster_id)
            except ValueError as error:
                raise _can_not_be(error) from error
            await self._retire(call, registered.cleared_namespaces, registered.barrier)
            link = self._link = self._new_link(registered)
            try:
                await self._converse(call, link, registered)
            finally:
                # It ends within moments, and its thread drives the pump until then: nothing else may.
                await asyncio.shield(asyncio.to_thread(link.stop))
                self._link = None
                self._heartbeats.sent += link.heartbeats_sent
                self._heartbeats.failed += link.ended is not None and link.ended[0] in ("silent", "stalled")
        finally:
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
            makes_link=True,
            expected_cluster_id=self._cluster_id,
            takes_questions=True,
            takes_copy_orders=self._copier is not None,
        )
        try:
            await self._send(call, pb.SegmentMessage(register=message))
            reply = await call.read()
        except grpc.aio.AioRpcError as error:
            self._check_cluster(refusing_cluster(error.trailing_metadata()))
            raise
        if reply is grpc.aio.EOF:
            raise RegistrationRefused(f"the master hung up: {await call.details() or 'no reason given'}")
        if reply.WhichOneof("body") != "registered":
            raise JournalProtocolError(
                f"the master answered the registration with {reply.WhichOneof('body')}"
            )
        registered = reply.registered
        if registered.protocol_version != VERSION_MAX:
            raise RegistrationRefused(
                f"the master speaks control protocol {registered.protocol_version}, this segment "
                f"{VERSION_MAX}: run the same release of kvstore on both"
            )
        self._check_cluster(registered.cluster_id.hex())
        if not registered.link_port:
            raise RegistrationRefused(
                "the master is of an older release than this segment and has no links: upgrade the masters first"
            )
        return registered

    def _check_cluster(self, theirs: str) -> None:
        if self._cluster_id and theirs and theirs != self._cluster_id.hex():
            raise ClusterChanged(theirs, self._cluster_id.hex())

    def _new_link(self, registered: Any) -> JournalLink:
        try:
            return JournalLink(
                self._pump,
                host=self._address.host,
                port=registered.link_port,
                token=self._registration.token,
                name=f"segment {self._registration.segment_id.hex()}",
                cluster_id=registered.cluster_id,
                link_token=registered.link_token,
                durable_seq=registered.durable_seq,
                need_inventory=registered.need_inventory,
                heartbeat_interval_ms=max(registered.heartbeat_interval_ms, 50),
            )
        except (ValueError, TypeError) as error:
            raise _can_not_be(error) from error

    async def _converse(self, call: Any, link: JournalLink, registered: Any) -> None:
        self._call = call
        copies = None
        if self._copier is not None:
            copies = CopyOrders(self._copier, lambda answer: self._send(call, answer))
        reading = asyncio.create_task(self._read(call, copies), name="attach-read")
        linking = asyncio.create_task(self._watch(link, registered), name="attach-link")
        try:
            over: list[asyncio.Future[Any]] = [reading, linking, self._goodbye]
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
            if self._goodbye.done():
                await self._send(call, self._goodbye.result())
                await call.done_writing()
                # The master ends the stream once it has taken note, and the link with it.
                await asyncio.wait({reading}, timeout=LEAVE_TIMEOUT_S)
                return
            if not reading.done():
                await asyncio.wait({reading}, timeout=REASON_TIMEOUT_S)
        finally:
            self._call = None
            for task in (reading, linking):
                task.cancel()
            results = await asyncio.gather(reading, linking, return_exceptions=True)
            if copies is not None:
                await asyncio.shield(copies.stop())
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _read(self, call: Any, copies: CopyOrders | None) -> None:
        """Until the master ends the stream."""
        while (message := await call.read()) is not grpc.aio.EOF:
            kind = message.WhichOneof("body")
            if kind == "retire_namespaces":
                retired = message.retire_namespaces
                await self._retire(call, retired.namespaces, retired.barrier)
            elif kind in ("keep_objects", "tell_retention", "tell_hottest", "drop_objects"):
                # In a thread: a whole namespace takes a while.
                answer = await asyncio.to_thread(answer_to, self._store, message)
                if answer is not None:
                    await self._send(call, answer)
            elif kind == "limit_quotas":
                self._limit(message.limit_quotas.limits)
            elif kind == "copy_objects" and copies is not None:
                await copies.take(message.copy_objects)
            elif kind == "drain_told":
                self.drain_told = message.drain_told
            elif kind == "cancel_copy" and copies is not None:
                copies.cancel(message.cancel_copy.question)
            # Anything else comes from a newer master: ignored, as the protocol asks.

    def _limit(self, limits: Iterable[Any]) -> None:
        try:
            self._store.set_quotas([(limit.limit_bytes, _ids(limit.namespaces)) for limit in limits])
        except ValueError as error:
            raise _can_not_be(error) from error

    async def _retire(self, call: Any, namespaces: Iterable[bytes], barrier: int) -> None:
        """Nothing of these is served when the master hears that the barrier is reached."""
        try:
            for ns in namespaces:
                self._store.retire_namespace(ns)
        except ValueError as error:
            raise _can_not_be(error) from error
        await self._send(call, pb.SegmentMessage(retired=pb.Retired(barrier=barrier)))

    async def _send(self, call: Any, message: Any) -> None:
        try:
            async with self._writing:
                await call.write(message)
        except asyncio.InvalidStateError:  # the master has ended the stream
            reason = await call.details() or "no reason given"
            raise RegistrationRefused(f"the master hung up: {reason}") from None

    async def _watch(self, link: JournalLink, registered: Any) -> None:
        """Until the link is over, which raises LinkLost."""
        loop = asyncio.get_running_loop()
        wake = asyncio.Event()
        loop.add_reader(link.event_fd, wake.set)
        linked = False
        try:
            while True:
                await wake.wait()
                wake.clear()
                link.events_seen()
                if link.linked and not linked:
                    linked = True
                    self._on_linked(registered)
                for last_seq, entries, reason in link.take_refusals():
                    log_throttled(
                        logger,
                        logging.ERROR,
                        "journal_entries_refused",
                        reason,
                        entries=entries,
                        last_seq=last_seq,
                        reason=reason,
                    )
                if link.ended is not None:
                    raise LinkLost(*link.ended)
        finally:
            loop.remove_reader(link.event_fd)


def _ids(namespaces: bytes) -> list[bytes]:
    return [namespaces[at : at + NAMESPACE_BYTES] for at in range(0, len(namespaces), NAMESPACE_BYTES)]


def _can_not_be(error: Exception) -> JournalProtocolError:
    """What the master said is nothing that a segment could take: the session is over, and the segment tries again."""
    return JournalProtocolError(f"what the master says on the stream of the registration can't be: {error}")
