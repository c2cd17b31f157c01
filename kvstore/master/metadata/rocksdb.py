"""`rocksdb:///path` - the embedded store: one master, one directory on a local disk.

Commits are synced to a recycled write-ahead log (half the cost of growing one). RocksDB's own lock on the
directory keeps a second process out; the term, counted in the store, keeps out an older holder inside this
one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import rocksdict

from kvstore.common.errors import FencedError, StoreError
from kvstore.common.logs import log_event, log_throttled
from kvstore.master.metadata.store import (
    INTERNAL_PREFIX,
    SCAN_PAGE_BYTES,
    DeleteRange,
    Fence,
    MetadataStore,
    Op,
    Put,
    checked_ops,
)

logger = logging.getLogger(__name__)

_TERM_KEY = INTERNAL_PREFIX + b"term"
_TERM = struct.Struct("<Q")
_WAL_BYTES_MAX = 64 << 20
_T = TypeVar("_T")


class RocksdbStore(MetadataStore):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: Any = None
        self._term = 0
        self._failed = False  # a write has failed: RocksDB takes none any more until it is opened anew
        # One thread for commits, so that a long scan never delays them.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="metadata-commit")
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="metadata-read")

    async def open(self) -> None:
        await self._on(self._writer, self._open)

    def _open(self) -> None:
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_recycle_log_file_num(4)
        # A damaged block of the log costs what is in it; by default everything after it would be gone
        # without a word.
        options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.skip_any_corrupted_record())
        options.set_max_total_wal_size(_WAL_BYTES_MAX)
        options.set_write_buffer_size(_WAL_BYTES_MAX // 2)
        options.set_keep_log_file_num(4)
        # Records are hashes: nothing to compress, and an uncompressed block loses one record to a flipped
        # bit, not all.
        options.set_compression_type(rocksdict.DBCompressionType.none())
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._db = rocksdict.Rdict(str(self._path), options)
        except Exception as error:
            raise StoreError(
                f"can't open the metadata store in {self._path}: {error}. Is another master running on it?"
            ) from error
        # Every record carries its own checksum (kvstore.master.state.records), which costs that record alone when
        # it is wrong; RocksDB's would end the whole scan.
        self._scan_options = rocksdict.ReadOptions()
        self._scan_options.set_verify_checksums(False)
        self._sync = rocksdict.WriteOptions()
        self._sync.sync = True
        stored = self._db.get(_TERM_KEY)
        self._term = _TERM.unpack(stored)[0] if stored is not None else 0

    async def acquire(self) -> Fence:
        return await self._on(self._writer, self._acquire)

    def _acquire(self) -> Fence:
        term = self._term + 1
        self._db.put(_TERM_KEY, _TERM.pack(term), write_opt=self._sync)
        self._term = term
        return Fence(term)

    async def commit(self, ops: Sequence[Op], fence: Fence) -> None:
        checked = checked_ops(ops)
        await self._on(self._writer, lambda: self._commit(checked, fence))

    def _commit(self, ops: Sequence[Op], fence: Fence) -> None:
        if self._failed:
            self._reopen()
        if fence.term != self._term:
            raise FencedError(f"term {fence.term} has ended, term {self._term} writes now")
        batch = rocksdict.WriteBatch(raw_mode=True)
        for op in ops:
            if isinstance(op, Put):
                batch.put(op.key, op.value)
            elif isinstance(op, DeleteRange):
                batch.delete_range(op.start, op.end)
            else:
                batch.delete(op.key)
        try:
            self._db.write(batch, self._sync)
        except Exception:
            self._failed = True
            raise

    def _reopen(self) -> None:
        """Raises StoreError while the disk still fails. Reads that run meanwhile may fail as well."""
        with contextlib.suppress(Exception):  # it says again what the write has said
            self._db.close()
        self._open()
        self._failed = False
        path = str(self._path)
        log_throttled(logger, logging.WARNING, "metadata_store_reopened", path, path=path)

    async def get(self, key: bytes) -> bytes | None:
        value: bytes | None = await self._on(self._readers, lambda: self._db.get(key))
        return value

    async def scan(self, prefix: bytes) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        if not prefix:
            raise StoreError("a scan needs a prefix")
        iterator = await self._on(self._readers, lambda: self._seek(prefix))
        while page := await self._on(self._readers, lambda: self._page(iterator, prefix)):
            yield page

    def _seek(self, prefix: bytes) -> Any:
        iterator = self._db.iter(self._scan_options)
        iterator.seek(prefix)
        return iterator

    @staticmethod
    def _page(iterator: Any, prefix: bytes) -> list[tuple[bytes, bytes]]:
        page: list[tuple[bytes, bytes]] = []
        size = 0
        while size < SCAN_PAGE_BYTES and iterator.valid():
            key = iterator.key()
            if not key.startswith(prefix):
                return page
            value = iterator.value()
            page.append((key, value))
            size += len(key) + len(value)
            iterator.next()
        if not iterator.valid():
            iterator.status()  # raises when the end is an error and not the end
        return page

    async def size_bytes(self) -> int:
        return await self._on(
            self._readers, lambda: sum(f.stat().st_size for f in self._path.iterdir() if f.is_file())
        )

    async def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            # Running commits and scans end first: the executors are drained before the database goes.
            await asyncio.get_running_loop().run_in_executor(None, lambda: self._close(db))

    def _close(self, db: Any) -> None:
        self._readers.shutdown(wait=True)
        self._writer.shutdown(wait=True)
        try:
            db.close()
        except Exception as error:
            # After a failed write. Whatever was acknowledged is in the log, which the next start reads.
            log_event(
                logger, logging.ERROR, "metadata_store_not_closed", path=str(self._path), error=str(error)
            )

    async def _on(self, executor: ThreadPoolExecutor, work: Callable[[], _T]) -> _T:
        if self._db is None and work != self._open:
            raise StoreError("the metadata store is not open")
        try:
            return await asyncio.get_running_loop().run_in_executor(executor, work)
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(f"metadata store in {self._path}: {error}") from error


def open_uri(uri: str) -> MetadataStore:
    parts = urlsplit(uri)
    if parts.netloc or not parts.path.startswith("/") or parts.query:
        raise StoreError(f"{uri!r}: write it as rocksdb:///absolute/path")
    return RocksdbStore(Path(unquote(parts.path)))
