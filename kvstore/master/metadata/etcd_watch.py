"""A watch on a key range that goes on, without a gap or a repetition, whatever happens to the members of the etcd cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from kvstore.etcd import etcd_pb2 as pb
from kvstore.master.metadata.etcd_client import RETRY_DELAY_S, EtcdClient
from kvstore.master.metadata.replicated import RevisionGoneError

# A silent stream is asked for a sign of life after this, and given up after so many questions.
SILENCE_S = 1.0
QUESTIONS_MAX = 2


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """`value` is None for a deletion."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class RevisionEvents:
    """All that one revision changed in the range, in order."""

    revision: int
    events: tuple[KeyEvent, ...]


async def watch(
    client: EtcdClient, start: bytes, end: bytes, revision: int
) -> AsyncGenerator[RevisionEvents, None]:
    """The changes of [start, end) from `revision` on, for ever. Raises RevisionGoneError when they are no longer kept: then the range
    has to be read anew. A member that is silent or fails is left for the next one."""
    while True:
        stream = _Stream(client, start, end, revision)
        try:
            async for changes in stream.run():
                revision = changes.revision + 1
                yield changes
        finally:
            stream.close()
        await asyncio.sleep(RETRY_DELAY_S)


class _Stream:
    """One watch stream to one member. `run` ends when it is of no more use."""

    def __init__(self, client: EtcdClient, start: bytes, end: bytes, revision: int) -> None:
        self._client = client
        self._request = pb.WatchRequest(
            create_request=pb.WatchCreateRequest(
                key=start, range_end=end, start_revision=revision, fragment=True
            )
        )
        self._next_revision = revision
        self._endpoint, self._call = client.open_watch()
        self._reading: asyncio.Task[Any] | None = None
        # Events of the newest revision seen, of which more may come in the next fragment.
        self._open_revision = 0
        self._open_events: list[KeyEvent] = []

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._call.cancel()

    async def run(self) -> AsyncIterator[RevisionEvents]:
        try:
            await asyncio.wait_for(self._call.write(self._request), SILENCE_S * QUESTIONS_MAX)
            while (reply := await self._read()) is not grpc.aio.EOF:
                if reply.canceled:
                    if reply.compact_revision:
                        raise RevisionGoneError(
                            f"changes from revision {self._next_revision} on are gone: etcd keeps those from "
                            f"{reply.compact_revision} on"
                        )
                    break
                for changes in self._take(reply):
                    yield changes
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.TimeoutError, asyncio.InvalidStateError):
            pass
        self._client.failed(self._endpoint)

    def _take(self, reply: Any) -> list[RevisionEvents]:
        complete = []
        for event in reply.events:
            revision = event.kv.mod_revision
            if revision < self._next_revision:
                continue
            if revision != self._open_revision:
                complete += self._flush()
                self._open_revision = revision
            value = event.kv.value if event.type == pb.Event.PUT else None
            self._open_events.append(KeyEvent(event.kv.key, value))
        if not reply.fragment:
            complete += self._flush()
        return complete

    def _flush(self) -> list[RevisionEvents]:
        if not self._open_events:
            return []
        done = RevisionEvents(self._open_revision, tuple(self._open_events))
        self._next_revision = self._open_revision + 1
        self._open_events = []
        return [done]

    async def _read(self) -> Any:
        """The next message. TimeoutError when the member gives no sign of life."""
        questions = 0
        while True:
            if self._reading is None:
                self._reading = asyncio.ensure_future(self._call.read())
            # Not wait_for: cancelling a read would cancel the stream.
            done, _ = await asyncio.wait({self._reading}, timeout=SILENCE_S)
            if done:
                reading, self._reading = self._reading, None
                return reading.result()
            if questions == QUESTIONS_MAX:
                raise asyncio.TimeoutError
            questions += 1
            question = pb.WatchRequest(progress_request=pb.WatchProgressRequest())
            await asyncio.wait_for(self._call.write(question), SILENCE_S)
