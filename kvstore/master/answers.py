"""Requests that are answered by a later effect: numbered, and awaited until then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kvstore.common.errors import RefusedError
from kvstore.master.state import events as ev
from kvstore_client.protocol import NamespaceReply


class Answers:
    """Who waits for which request. Event loop only."""

    def __init__(self, handle: Callable[[ev.Event], None]) -> None:
        self._handle = handle
        self._numbers = 0
        self._waiters: dict[int, asyncio.Future[NamespaceReply | None]] = {}

    async def ask(self, event: Callable[[int], ev.Event]) -> NamespaceReply | None:
        """Hands over the event that carries the number of a request; its answer. Raises RefusedError."""
        self._numbers += 1
        number = self._numbers
        waiter: asyncio.Future[NamespaceReply | None] = asyncio.get_running_loop().create_future()
        self._waiters[number] = waiter
        try:
            self._handle(event(number))
            return await waiter
        finally:
            del self._waiters[number]

    async def ask_namespace(self, event: Callable[[int], ev.Event]) -> NamespaceReply:
        """The same, where the answer is a namespace."""
        reply = await self.ask(event)
        assert reply is not None
        return reply

    def answer(self, request: int, answer: NamespaceReply | None) -> None:
        """Nothing, when the client has gone away."""
        waiter = self._waiters.get(request)
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)

    def refuse(self, request: int, error: RefusedError) -> None:
        waiter = self._waiters.get(request)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def refuse_all(self, error: RefusedError) -> None:
        for request in list(self._waiters):
            self.refuse(request, error)
