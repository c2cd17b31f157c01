"""`rocksdb:///path` - the embedded store: one master, one directory on a local disk.

A commit is durable in the log (native/master/commit_log.hpp), which a thread of its own writes, and is carried over to RocksDB
afterwards, which has a process of its own: whatever the disk does, interpreter and event loop go on. A lock on the log keeps a
second process out; the term, counted in the store, keeps out an older holder inside this one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kvstore.common.errors import FencedError, StoreError
from kvstore.common.logs import log_event
from kvstore.master.metadata import store_directory
from kvstore.master.metadata.blocking_calls import BlockingCalls
from kvstore.master.metadata.carry_over import CarryOver
from kvstore.master.metadata.durable_log import DurableLog
from kvstore.master.metadata.rocksdb_client import CanNotOpenError
from kvstore.master.metadata.rocksdb_messages import OpKind, encode_op
from kvstore.master.metadata.store import (
    COMMITS_LOST_KEY,
    INTERNAL_PREFIX,
    DeleteRange,
    Fence,
    MetadataStore,
    Op,
    Put,
    Space,
    SpaceLevel,
    checked_ops,
)

logger = logging.getLogger(__name__)

_TERM_KEY = INTERNAL_PREFIX + b"term"
_TERM = struct.Struct("<Q")
# How far above the last durable one a term may lie that can't be made durable: the next of that kind is another one.
_VOLATILE_TERMS = 1 << 16
# At the end, so that the next start has little to carry over.
LAST_CHECKPOINT_TIMEOUT_S = 0.25
# For the end of the process of RocksDB, which is killed.
END_TIMEOUT_S = 0.2


class RocksdbStore(MetadataStore):
    COMMITS_TOGETHER_MAX = 256

    def __init__(self, path: Path) -> None:
        self._path = path
        self._disk = BlockingCalls("metadata-disk")
        self._log: DurableLog | None = None
        self._rocksdb: CarryOver | None = None
        self._term = 0
        self._term_is_durable = True
        self._ready = False

    async def open(self) -> None:
        await self._disk.run(lambda: store_directory.prepare_directory(self._path))
        self._rocksdb = rocksdb = CarryOver(self._path, self._checkpointed)
        self._log = DurableLog(self._path, self._disk, rocksdb.add, rocksdb.hurry)
        await self._log.lock()
        try:
            carried = await rocksdb.start()
        except CanNotOpenError as error:
            raise store_directory.unusable(self._path, str(error)) from error
        for sequence, payload in await self._log.read(carried):
            rocksdb.add(sequence, payload)
        if self._log.lost_commits:
            # Before anything is carried over: a checkpoint behind the gap would make it forgotten.
            await self._log.write([encode_op(OpKind.PUT, COMMITS_LOST_KEY)])
        rocksdb.begin()
        stored = await rocksdb.get(_TERM_KEY)
        self._term = _TERM.unpack(stored)[0] if stored is not None else 0
        self._ready = True

    def _checkpointed(self, sequence: int) -> None:
        if self._log is not None:  # not while it is being closed
            self._log.release(sequence)

    async def acquire(self) -> Fence:
        log, _ = self._opened()
        term = self._term + 1
        try:
            await log.write([_term_payload(term)])
        except StoreError as error:
            if not store_directory.is_out_of_space(str(error)):
                raise
            # Reads need no term, and the first commit that finds room makes it durable before its own.
            term += secrets.randbelow(_VOLATILE_TERMS)
            self._term_is_durable = False
        self._term = term
        return Fence(term)

    async def commit(self, ops: Sequence[Op], fence: Fence) -> None:
        await self.commit_together((ops,), fence)

    async def commit_together(self, commits: Sequence[Sequence[Op]], fence: Fence) -> None:
        log, _ = self._opened()
        payloads = [_encoded(checked_ops(ops)) for ops in commits]
        if fence.term != self._term:
            raise FencedError(f"term {fence.term} has ended, term {self._term} writes now")
        if not self._term_is_durable:
            payloads.insert(0, _term_payload(self._term))
        await log.write(payloads)
        self._term_is_durable = True

    async def get(self, key: bytes) -> bytes | None:
        return await self._opened()[1].get(key)

    async def scan(self, prefix: bytes) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        if not prefix:
            raise StoreError("a scan needs a prefix")
        async for page in self._opened()[1].scan(prefix):
            yield page

    async def size_bytes(self) -> int:
        self._opened()
        try:
            return await self._disk.run(lambda: store_directory.occupied_bytes(self._path))
        except OSError as error:
            raise StoreError(f"metadata store in {self._path}: {error}") from error

    async def space(self, pending_bytes: int = 0) -> Space:
        log, rocksdb = self._opened()
        return Space(SpaceLevel.NORMAL, log.trouble or rocksdb.trouble)

    async def close(self) -> None:
        """Waits for no disk that hangs."""
        was_ready, self._ready = self._ready, False
        log, rocksdb = self._log, self._rocksdb
        self._log = self._rocksdb = None
        ending = [log.close()] if log is not None else []
        if rocksdb is not None and was_ready:
            ending.append(self._last_checkpoint(rocksdb))
        await asyncio.gather(*ending)
        if rocksdb is not None:
            rocksdb.stop()
            await rocksdb.gone(END_TIMEOUT_S)
        self._disk.close()

    async def _last_checkpoint(self, rocksdb: CarryOver) -> None:
        """What it leaves out is in the log, which the next start reads."""
        try:
            await asyncio.wait_for(rocksdb.checkpoint(), LAST_CHECKPOINT_TIMEOUT_S)
        except (StoreError, asyncio.TimeoutError) as error:
            why = str(error) or f"it took more than {LAST_CHECKPOINT_TIMEOUT_S:g} s"
            path = str(self._path)
            log_event(logger, logging.WARNING, "metadata_checkpoint_left_out", path=path, error=why)

    def _opened(self) -> tuple[DurableLog, CarryOver]:
        if not self._ready or self._log is None or self._rocksdb is None:
            raise StoreError("the metadata store is not open")
        return self._log, self._rocksdb


def _encoded(ops: Sequence[Op]) -> bytes:
    parts = []
    for op in ops:
        if isinstance(op, Put):
            parts.append(encode_op(OpKind.PUT, op.key, op.value))
        elif isinstance(op, DeleteRange):
            parts.append(encode_op(OpKind.DELETE_RANGE, op.start, op.end))
        else:
            parts.append(encode_op(OpKind.DELETE, op.key))
    return b"".join(parts)


def _term_payload(term: int) -> bytes:
    return encode_op(OpKind.PUT, _TERM_KEY, _TERM.pack(term))


def open_uri(uri: str) -> MetadataStore:
    parts = urlsplit(uri)
    if parts.netloc or not parts.path.startswith("/") or parts.query:
        raise StoreError(f"{uri!r}: write it as rocksdb:///absolute/path")
    return RocksdbStore(Path(unquote(parts.path)))
