"""A segment's process: the product's journal pump and back-off over a model pool, speaking the control protocol's messages.

What the product does in between (the link, heartbeats, choosing a master) is modelled after it: registration within a time, a heartbeat
to the master that registered us for as long as no other has, silence and "not known" end the stream, doubling pauses between attempts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvstore.common.backoff import Backoff
from kvstore.master.state.changes import Registration
from kvstore.master.state.endpoint import Endpoint
from kvstore.master.state.events import HeartbeatReceived
from kvstore.segment.journal_pump import Batch, JournalPump, PumpState
from kvstore_client.protocol import Status
from simulation.event_log import EventLog
from simulation.master_node import Registered
from simulation.model_pool import Key, ModelPool
from simulation.network import ConnectionEnded, End, Network, Unreachable
from simulation.process import Process

REGISTER_TIMEOUT_S = 3.0
HEARTBEAT_TIMEOUT_S = 1.0
SILENT_BEATS_MAX = 3
STABLE_S = 5.0
STANDBY_DELAY_S_MAX = 0.3
# Entries that come together go out together.
JOURNAL_LINGER_S = 0.0005


@dataclass(frozen=True)
class SegmentOptions:
    batch_entries_max: int = 8
    batches_in_flight_max: int = 4


class SegmentNode:
    """One life of a segment. `run` ends when it has left; `on_failed` hears of what ends it from within."""

    def __init__(
        self,
        network: Network,
        process: Process,
        log: EventLog,
        dice: random.Random,
        masters: list[str],
        segment_id: bytes,
        pool: ModelPool,
        options: SegmentOptions,
        on_failed: Callable[[str], None],
    ) -> None:
        self.process = process
        self.segment_id = segment_id
        self.pool = pool
        self.pump = JournalPump(
            pool,
            batch_entries_max=options.batch_entries_max,
            batches_in_flight_max=options.batches_in_flight_max,
        )
        self.master = ""
        self.attaches = 0
        self.left = False
        self.attached_since: float | None = None
        self._on_failed = on_failed
        self._network = network
        self._log = log
        self._dice = dice
        self._masters = masters
        self._backoff = Backoff(0.05, 2.0, dice)
        self._wake = asyncio.Event()
        self._leaving: str | None = None
        self._end: End | None = None
        self._beating: asyncio.Task[Any] | None = None
        self._cluster_id = b""
        self._retired_barrier: int | None = None  # to be confirmed
        pool.on_due = self._due
        network.servers[process.host] = self
        process.start(self.run(), "segment").add_done_callback(self._run_ended)

    @property
    def host(self) -> str:
        return self.process.host

    @property
    def attached(self) -> bool:
        return self.attached_since is not None

    def _run_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._on_failed(f"{self.host}: {task.exception()!r}")

    # ---- data port -------------------------------------------------------------------------------------------

    async def on_put(self, pool_id: bytes, key: Key, value: str, length: int) -> Status:
        """OK once it is durable."""
        if pool_id != self.pool.pool_id:
            return Status.WRONG_PEER
        seq = self.pool.put(self.process.loop.time(), key, value, length)
        if seq is None:
            return Status.NO_SPACE
        await self.pool.durable(seq)
        return Status.OK

    def on_get(self, pool_id: bytes, key: Key, pin_s: float) -> tuple[Status, str]:
        if pool_id != self.pool.pool_id:
            return Status.WRONG_PEER, ""
        page = self.pool.get(key)
        if page is None:
            return Status.MISS, ""
        if pin_s:
            page.pinned_until = max(page.pinned_until, self.process.loop.time() + pin_s)
        return Status.OK, page.value

    # ---- control ---------------------------------------------------------------------------------------------

    def leave(self, reason: str) -> None:
        self._leaving = reason
        self._wake.set()

    async def run(self) -> None:
        turn = self._dice.randrange(len(self._masters))
        while self._leaving is None:
            master = self._masters[turn % len(self._masters)]
            turn += 1
            try:
                await self._attach(master)
                reason = "left"
            except (Unreachable, ConnectionEnded, asyncio.TimeoutError) as error:
                reason = str(error)
                if "NOT_LEADER" in reason:
                    self._backoff.limit(STANDBY_DELAY_S_MAX)
            self._detached()
            self._log.say(self.host, f"not attached to {master}: {reason}")
            if self._leaving is None:
                await asyncio.sleep(self._backoff.next_delay_s())
        if self._beating is not None:
            self._beating.cancel()
        self.left = True

    async def _attach(self, master: str) -> None:
        end = await self._network.connect(self.process, master, 1.0)
        self._end = end
        known = self.pool.namespaces()
        reading: asyncio.Task[Any] | None = None
        try:
            end.send(("register", self._registration()))
            kind, registered = await asyncio.wait_for(end.receive(), REGISTER_TIMEOUT_S)
            assert kind == "registered", kind
            assert self._cluster_id in (b"", registered.cluster_id), "the cluster has become another one"
            self._cluster_id = registered.cluster_id
            self.pool.set_namespaces(list(registered.current), known)
            self._retire(registered.cleared, registered.barrier)
            self.pump.attached(registered.durable_seq, registered.need_inventory)
            self._registered(master, registered)
            reading = asyncio.ensure_future(self._read(end))
            await self._write(end, reading)
        finally:
            if reading is not None:
                reading.cancel()
            self.pump.detached()
            end.close("the segment ended it")
            self._end = None

    def _registration(self) -> Registration:
        pool = self.pool
        endpoint = Endpoint(self.segment_id, pool.pool_id, self.host, 7450, "", pool.capacity_bytes)
        return Registration(endpoint, pool.last_seq, pool.oldest_kept_seq)

    def _retire(self, namespaces: tuple[bytes, ...], barrier: int) -> None:
        for ns in namespaces:
            self.pool.retire_namespace(ns)
        self._retired_barrier = barrier

    def _registered(self, master: str, registered: Registered) -> None:
        self.master = master
        self.attaches += 1
        self.attached_since = self.process.loop.time()
        if self._beating is not None:
            self._beating.cancel()
        self._beating = self.process.start(self._beat(master, registered.heartbeat_s), "heartbeat")
        self._log.say(
            self.host,
            f"attached to {master} as {registered.index}, durable {registered.durable_seq}, {self.pump.state.name}",
        )

    def _detached(self) -> None:
        if self.attached_since is not None:
            if self.process.loop.time() - self.attached_since >= STABLE_S:
                self._backoff.reset()
            self.attached_since = None

    async def _read(self, end: End) -> None:
        while True:
            message = await end.receive()
            if message[0] == "ack":
                self.pump.acked(message[1])
            elif message[0] == "retire":
                self._retire(message[1], message[2])
            elif message[0] == "inventory_request":
                self.pump.inventory_requested()
            elif message[0] == "refused":
                self.pump.entries_refused += message[1]
            self._wake.set()

    async def _write(self, end: End, reading: asyncio.Task[Any]) -> None:
        reading.add_done_callback(lambda _: self._wake.set())
        while self._leaving is None:
            if reading.done():
                reading.result()
            if self._retired_barrier is not None:
                end.send(("retired", self._retired_barrier))
                self._retired_barrier = None
            message = self.pump.next_message()
            if message is None:
                self._wake.clear()
                await self._wake.wait()
                if self.pump.state is PumpState.STREAMING:
                    await asyncio.sleep(JOURNAL_LINGER_S)
            elif isinstance(message, Batch):
                self._log.say(self.host, f"journal {message.first_seq} to {message.last_seq}")
                end.send(("journal", message.first_seq, message.last_seq, message.groups))
            else:
                self._log.say(
                    self.host, f"inventory of {message.last_seq}{', last chunk' if message.last else ''}"
                )
                end.send(("inventory", message.last_seq, message.groups, message.first, message.last))
        end.send(("leaving", self._leaving))

    def _due(self) -> None:
        self._wake.set()

    # ---- heartbeats ------------------------------------------------------------------------------------------

    async def _beat(self, master: str, interval_s: float) -> None:
        silent = 0
        while True:
            beat = HeartbeatReceived(
                self.segment_id,
                self.pool.pool_id,
                self.pool.used_bytes,
                len(self.pool.pages),
                evicted_objects=self.pool.evicted,
            )
            known: bool | None
            try:
                known = await self._network.call(
                    self.process, master, "heartbeat", beat, timeout_s=HEARTBEAT_TIMEOUT_S
                )
            except (Unreachable, asyncio.TimeoutError):
                known = None
            silent = silent + 1 if known is None else 0
            if known is False or silent >= SILENT_BEATS_MAX:
                why = "does not know us" if known is False else "is silent"
                if self._end is not None and self.attached and self.master == master:
                    self._end.end(f"{master} {why}")
            await asyncio.sleep(interval_s)
