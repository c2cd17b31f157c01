"""A client's process: opens namespaces, puts, gets, clears, and tells the oracle what it was told."""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import dataclass

from kvstore.common.errors import RefusedError, StoreError
from kvstore_client.protocol import MapRecord, NamespaceReply, Status
from simulation.event_log import EventLog
from simulation.network import Network, Unreachable
from simulation.oracle import Oracle
from simulation.process import Process

DEADLINE_S = 1.0
PIN_S = 1.0
BARRIER_POLL_S = 0.5
LENGTHS = (100, 400)


@dataclass(frozen=True)
class ClientOptions:
    pages: int = 60  # different ones of a namespace
    batch_max: int = 6
    clear_share: float = 0.02  # of operations


class Gone(Exception):
    """No master, or no segment, has answered in time."""


def page_value(identity: bytes, epoch: int, number: int) -> str:
    return f"{identity.decode()}/{epoch}/{number}"


def page_fingerprint(ns: bytes, number: int) -> bytes:
    return hashlib.blake2b(ns + number.to_bytes(4, "little"), digest_size=16).digest()


class ClientNode:
    def __init__(
        self,
        network: Network,
        process: Process,
        log: EventLog,
        dice: random.Random,
        oracle: Oracle,
        masters: list[str],
        identities: list[bytes],
        options: ClientOptions,
    ) -> None:
        self.process = process
        self.idle = True
        self._network = network
        self._log = log
        self._dice = dice
        self._oracle = oracle
        self._masters = masters
        self._identities = identities
        self._options = options
        self._namespaces: dict[bytes, NamespaceReply] = {}
        self._master = dice.choice(masters)

    async def work(self, until: float, pause_s: float) -> None:
        """Random operations."""
        while self.process.loop.time() < until:
            identity = self._dice.choice(self._identities)
            roll = self._dice.random()
            try:
                if roll < 0.45:
                    await self.put(identity, self._numbers())
                elif roll < 1.0 - self._options.clear_share:
                    await self.get(identity, self._numbers())
                else:
                    await self.clear(identity)
            except Gone as error:
                self._log.say(self.process.host, str(error))
            await asyncio.sleep(self._dice.uniform(0, 2 * pause_s))

    def _numbers(self) -> list[int]:
        count = self._dice.randint(1, self._options.batch_max)
        return list(dict.fromkeys(self._dice.randrange(self._options.pages) for _ in range(count)))

    async def put(self, identity: bytes, numbers: list[int]) -> int:
        """How many of them were acknowledged, or there. Raises Gone."""
        namespace = await self._open(identity)
        fingerprints = [page_fingerprint(namespace.ns, number) for number in numbers]
        lengths = [LENGTHS[0] + number * 7 % (LENGTHS[1] - LENGTHS[0]) for number in numbers]
        try:
            places = await self._ask_leader("place", namespace.ns, fingerprints, lengths)
        except RefusedError:
            self._namespaces.pop(identity, None)
            return 0
        puts = [
            self._put(namespace, place, identity, number, fingerprint, length)
            for place, number, fingerprint, length in zip(places, numbers, fingerprints, lengths, strict=True)
            if isinstance(place, MapRecord)
        ]
        there = sum(place == 0xFFFFFFFE for place in places)
        return there + sum(await asyncio.gather(*puts))

    async def _put(
        self,
        namespace: NamespaceReply,
        place: MapRecord,
        identity: bytes,
        number: int,
        fingerprint: bytes,
        length: int,
    ) -> bool:
        key = (namespace.ns, fingerprint)
        value = page_value(identity, namespace.epoch, number)
        try:
            status = await self._network.call(
                self.process, place.host, "put", place.pool_id, key, value, length, timeout_s=DEADLINE_S
            )
        except (Unreachable, asyncio.TimeoutError):
            return False
        if status is Status.OK:
            self._log.say(self.process.host, f"put {value} on {place.host}")
            self._oracle.acked(place.host, key)
        return status is Status.OK

    async def get(self, identity: bytes, numbers: list[int]) -> int:
        """How many were served. Raises Gone."""
        barrier = self._oracle.barrier(identity)
        namespace = await self._open(identity)
        fingerprints = [page_fingerprint(namespace.ns, number) for number in numbers]
        master = self._dice.choice(self._masters)
        try:
            holders = await self._network.call(
                self.process, master, "lookup", namespace.ns, fingerprints, timeout_s=DEADLINE_S
            )
        except (Unreachable, asyncio.TimeoutError) as error:
            raise Gone(f"get: {error}") from None
        except RefusedError as error:
            if error.status is Status.STALE_NAMESPACE:
                self._namespaces.pop(identity, None)
            return 0
        served = 0
        for number, fingerprint, holder in zip(numbers, fingerprints, holders, strict=True):
            if holder is None:
                continue
            self._oracle.found(master, identity, namespace.epoch, barrier, fingerprint, holder)
            try:
                status, value = await self._network.call(
                    self.process,
                    holder.host,
                    "get",
                    holder.pool_id,
                    (namespace.ns, fingerprint),
                    PIN_S if self._dice.random() < 0.3 else 0.0,
                    timeout_s=DEADLINE_S,
                )
            except (Unreachable, asyncio.TimeoutError):
                continue
            if status is Status.OK:
                served += 1
                expected = page_value(identity, namespace.epoch, number)
                self._oracle.served(holder.host, (namespace.ns, fingerprint), value, expected)
        return served

    async def clear(self, identity: bytes) -> None:
        """Raises Gone when it is not known whether it was done."""
        old = await self._open(identity)
        try:
            new = await self._ask_leader("bump", old.ns)
        except RefusedError:
            self._namespaces.pop(identity, None)
            return
        self._namespaces[identity] = new
        self._log.say(self.process.host, f"cleared {identity.decode()}: epoch {new.epoch}")
        if new.ns != old.ns:
            self._oracle.cleared(old.ns)
            self.process.start(self._wait_for_barrier(identity, new.epoch, old.ns), "barrier")

    async def _wait_for_barrier(self, identity: bytes, epoch: int, old_ns: bytes) -> None:
        """As `kvstore admin clear --wait` does, without its bound."""
        while True:
            try:
                unconfirmed = await self._ask_leader("clear_progress", old_ns)
            except (Gone, RefusedError, StoreError):
                unconfirmed = None
            if unconfirmed == []:
                self._log.say(
                    self.process.host, f"nobody answers for epochs before {epoch} of {identity.decode()}"
                )
                self._oracle.barrier_reached(identity, epoch, old_ns)
                return
            await asyncio.sleep(BARRIER_POLL_S)

    async def _open(self, identity: bytes) -> NamespaceReply:
        namespace = self._namespaces.get(identity)
        if namespace is None:
            try:
                namespace = await self._ask_leader("open", identity)
            except RefusedError as error:
                raise Gone(f"open: {error}") from None
            self._namespaces[identity] = namespace
        return namespace

    async def _ask_leader(self, service: str, *args: object) -> object:
        """Of the master that answered last, then of the others. RefusedError when one that may answer says no."""
        why = "no master"
        for master in [self._master, *(m for m in self._masters if m != self._master)]:
            try:
                answer = await self._network.call(self.process, master, service, *args, timeout_s=DEADLINE_S)
            except (Unreachable, asyncio.TimeoutError) as error:
                why = str(error)
            except RefusedError as error:
                if error.status not in (Status.NOT_LEADER, Status.UNAVAILABLE):
                    raise
                why = str(error)
            else:
                self._master = master
                return answer
        raise Gone(f"{service}: {why}")
