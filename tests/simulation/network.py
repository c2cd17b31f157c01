"""The network between hosts: calls and connections that are delayed, cut, slowed and broken, as TCP would show it.

On one connection messages come in order or not at all; on different ones in any order. What was on its way when a connection broke may
still arrive, after the other side has long begun a new one.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from simulation.event_log import EventLog
from simulation.process import Process
from simulation.virtual_time import VirtualLoop

LATENCY_S = (0.0002, 0.002)
# Both ends of a connection that carries nothing any more notice after this (keep-alive).
KEEPALIVE_S = 8.0
# A broken connection: the far end may read what was on its way for so long.
LATE_S_MAX = 1.5

Pair = frozenset[str]


class Unreachable(Exception):
    """Nobody listens there, or the connection broke: what was asked for may have been done."""


class ConnectionEnded(Exception):
    """The other side closed it, with this reason, or it broke."""


class End:
    """One end of a connection. Messages come by `receive`, or to `on_message` where that is set."""

    def __init__(self, network: Network, process: Process, peer_host: str) -> None:
        self._network = network
        self.process = process
        self.peer_host = peer_host
        self.peer: End
        self.on_message: Callable[[Any], None] | None = None
        self.on_end: Callable[[], None] = lambda: None
        self.over: str | None = None
        self.arrives_at = 0.0  # of the newest message on its way here
        self.held: list[Callable[[], None]] = []  # cut off on their way here
        self._inbox: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def send(self, message: Any) -> None:
        """Queues and returns; nothing when the connection is over."""
        if self.over is None:
            self._network.carry(self, lambda: self.peer.arrived(message))

    def close(self, reason: str = "closed") -> None:
        """What was sent before arrives first. Idempotent."""
        if self.over is None:
            self.end(reason)
            self._network.carry(self, lambda: self.peer.end(reason))

    async def receive(self) -> Any:
        """The next message. Raises ConnectionEnded."""
        while not self._inbox:
            if self.over is not None:
                raise ConnectionEnded(self.over)
            self._waiter = self.process.loop.create_future()
            await self._waiter
        return self._inbox.popleft()

    def arrived(self, message: Any) -> None:
        if self.over is not None or not self.process.alive:
            return
        if self.on_message is not None:
            self.on_message(message)
        else:
            self._inbox.append(message)
            self._wake()

    def end(self, reason: str) -> None:
        if self.over is None:
            self.over = reason
            self._network.forget(self)
            self._wake()
            if self.process.alive:
                self.on_end()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Network:
    """`servers[host]` is who answers there now: `on_<service>` for calls, `on_connect(end)` for connections."""

    def __init__(self, loop: VirtualLoop, dice: random.Random, log: EventLog) -> None:
        self._loop = loop
        self._dice = dice
        self._log = log
        self.servers: dict[str, Any] = {}
        self._cuts: dict[Pair, int] = {}
        self.slow: dict[Pair, float] = {}  # seconds more
        self.lossy: dict[Pair, float] = {}  # share of messages whose connection breaks
        self._ends: dict[End, None] = {}
        self._held_calls: dict[Pair, list[Callable[[], None]]] = {}

    # ---- faults ----------------------------------------------------------------------------------------------

    def cut(self, a: str, b: str) -> None:
        pair = frozenset((a, b))
        self._cuts[pair] = self._cuts.get(pair, 0) + 1
        if self._cuts[pair] == 1:
            for end in list(self._ends):
                if frozenset((end.process.host, end.peer_host)) == pair:
                    self._loop.call_later(KEEPALIVE_S, self._keep_alive, end, pair, self._loop.time())

    def heal(self, a: str, b: str) -> None:
        pair = frozenset((a, b))
        self._cuts[pair] -= 1
        if self._cuts[pair]:
            return
        del self._cuts[pair]
        for end in list(self._ends):
            if end.held and frozenset((end.process.host, end.peer_host)) == pair:
                held, end.held = end.held, []
                for action in held:
                    self._deliver(end, pair, action)
        for action in self._held_calls.pop(pair, ()):
            self._loop.call_later(self._latency_s(pair), action)

    def is_cut(self, a: str, b: str) -> bool:
        return frozenset((a, b)) in self._cuts

    def break_connections(self, a: str, b: str) -> None:
        """Those between two hosts: each end notices in its own time."""
        for end in list(self._ends):
            if end.process.host == a and end.peer_host == b:
                self._break(end)

    def process_died(self, process: Process) -> None:
        """Its connections break; whoever is cut off from it notices later."""
        for end in list(self._ends):
            if end.process is process:
                self.forget(end)
                end.over = "the process died"
                self.carry(end, lambda peer=end.peer: peer.end("the process there died"))  # type: ignore[misc]

    @property
    def connections(self) -> int:
        return len(self._ends)

    # ---- connections -----------------------------------------------------------------------------------------

    async def connect(self, process: Process, host: str, timeout_s: float) -> End:
        """Raises Unreachable or TimeoutError."""
        await self.call(process, host, "ping", timeout_s=timeout_s)
        server = self.servers.get(host)
        if server is None or not server.process.alive:
            raise Unreachable(f"nobody listens at {host}")
        near, far = End(self, process, host), End(self, server.process, process.host)
        near.peer, far.peer = far, near
        self._ends[near] = self._ends[far] = None
        server.process.context.copy().run(server.on_connect, far)
        return near

    def carry(self, source: End, action: Callable[[], None]) -> None:
        """One message from `source` to its peer."""
        pair = frozenset((source.process.host, source.peer_host))
        if self.lossy and self._dice.random() < self.lossy.get(pair, 0.0):
            self._break(source)
            return
        self._deliver(source.peer, pair, action)

    def _deliver(self, target: End, pair: Pair, action: Callable[[], None]) -> None:
        if pair in self._cuts or target.held:
            target.held.append(action)
            return
        # Strictly later: the loop does not keep the order of what is due at the same time.
        target.arrives_at = max(target.arrives_at + 1e-6, self._loop.time() + self._latency_s(pair))
        context = target.process.context.copy()
        self._loop.call_at(target.arrives_at, self._arrive, target, pair, action, context=context)

    def _arrive(self, target: End, pair: Pair, action: Callable[[], None]) -> None:
        if pair in self._cuts or target.held:
            target.held.append(action)
        else:
            action()

    def forget(self, end: End) -> None:
        self._ends.pop(end, None)

    def _break(self, end: End) -> None:
        if end.over is None:
            peer = end.peer
            end.end("the connection broke")
            self._loop.call_later(
                self._dice.uniform(0, LATE_S_MAX),
                peer.end,
                "the connection broke",
                context=peer.process.context.copy(),
            )

    def _keep_alive(self, end: End, pair: Pair, since: float) -> None:
        if end.over is None and pair in self._cuts:
            end.held.clear()
            end.process.context.copy().run(end.end, "no keep-alive was answered")

    # ---- calls -----------------------------------------------------------------------------------------------

    async def call(self, process: Process, host: str, service: str, *args: Any, timeout_s: float) -> Any:
        """What `on_<service>(*args)` of whoever listens at `host` answers. Raises Unreachable or TimeoutError, and what the
        service raises."""
        if not process.alive:
            raise Unreachable("a dead process asks for nothing")
        loop = self._loop
        pair = frozenset((process.host, host))
        answer = loop.create_future()

        def fail(error: Exception) -> None:
            if not answer.done():
                answer.set_exception(error)

        def reply(value: Any, error: BaseException | None) -> None:
            def arrive() -> None:
                if not answer.done():
                    answer.set_result(value) if error is None else answer.set_exception(error)

            if lost == "reply":
                fail_later(Unreachable(f"the connection to {host} broke"))
            else:
                self._send(pair, arrive)

        def fail_later(error: Exception) -> None:
            loop.call_later(self._latency_s(pair), fail, error)

        def serve() -> None:
            server = self.servers.get(host)
            if server is None or not server.process.alive:
                self._send(pair, lambda: fail(Unreachable(f"nobody listens at {host}")))
                return
            if service == "ping":
                reply(None, None)
                return
            try:
                result = server.process.context.copy().run(getattr(server, f"on_{service}"), *args)
            except Exception as error:
                reply(None, error)
                return
            if not asyncio.iscoroutine(result):
                reply(result, None)
                return
            task = server.process.start(result, f"serve-{service}")
            task.add_done_callback(
                lambda done: (
                    fail_later(Unreachable(f"{host} died"))
                    if done.cancelled()
                    else reply(None if done.exception() else done.result(), done.exception())
                )
            )

        lost = ""
        if self.lossy and self._dice.random() < self.lossy.get(pair, 0.0):
            lost = self._dice.choice(("request", "reply"))
        if lost == "request":
            fail_later(Unreachable(f"the connection to {host} broke"))
        else:
            self._send(pair, serve)
        deadline = loop.call_later(
            timeout_s, fail, asyncio.TimeoutError(f"{host} did not answer in {timeout_s:g} s")
        )
        try:
            return await answer
        finally:
            deadline.cancel()

    def _send(self, pair: Pair, action: Callable[[], None]) -> None:
        if pair in self._cuts:
            if self._dice.random() < 0.5:  # it arrives late, or was given up with its connection
                self._held_calls.setdefault(pair, []).append(action)
        else:
            self._loop.call_later(self._latency_s(pair), action)

    def _latency_s(self, pair: Pair) -> float:
        latency_s = self._dice.uniform(*LATENCY_S)
        if pair in self.slow:
            latency_s += self._dice.random() * self.slow[pair]
        return latency_s
