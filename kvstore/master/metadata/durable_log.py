"""The commit log as the event loop sees it: opening it, writing, and hearing of what is durable.

Its files are made in advance and used again, so it takes commits on a full disk too. Where it can't be opened for want of space there
is none at first, and each write tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Callable
from pathlib import Path

from kvstore.common.errors import FencedError, StoreError
from kvstore.common.logs import log_event, log_throttled
from kvstore.master.metadata import store_directory
from kvstore.master.metadata.blocking_calls import BlockingCalls
from kvstore_client._native import CommitLog

logger = logging.getLogger(__name__)

# A commit at its bounds fits a file three times; commits wait for room when all files but one wait for a checkpoint.
FILE_BYTES = 4 << 20
FILES_MAX = 4
# The end of the log's thread; where the disk hangs it is left behind.
END_TIMEOUT_S = 0.2
# Space says that there is none: anything else is a fault that a start must not hide.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DurableLog:
    """lock(), read(), then the rest. Event loop only."""

    def __init__(
        self,
        path: Path,
        disk: BlockingCalls,
        on_durable: Callable[[int, bytes], None],
        on_failed: Callable[[], None],
    ) -> None:
        """`path`: of the store. `on_durable` hears of each commit, in the order of sequences, `on_failed` of a write that failed."""
        self._path = path
        self._disk = disk
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._log: CommitLog | None = None
        self._fd = -1
        self._released = 0
        self._writes: dict[int, tuple[asyncio.Future[None], list[bytes]]] = {}
        self._last_ticket = 0
        self._reopening = asyncio.Lock()
        self.trouble = ""  # why it takes nothing, while it does not
        self.lost_commits = False  # some were damaged when it was read

    async def lock(self) -> None:
        """Takes the directory for this process. Raises StoreError; not where only space is missing."""
        directory = str(store_directory.commits_directory(self._path))
        try:
            self._log = await self._disk.run(lambda: CommitLog(directory, FILE_BYTES, FILES_MAX))
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno == errno.EWOULDBLOCK:
                raise store_directory.in_use(self._path, why) from error
            if error.errno not in _NO_SPACE:
                raise store_directory.unusable(self._path, why) from error
            self._failed(why)

    async def read(self, released: int) -> list[tuple[int, bytes]]:
        """(sequence, payload) of what was committed after `released`; from here on commits can be written. Raises StoreError."""
        self._released = released
        log = self._log
        if log is None:
            return []
        try:
            records, lost, trouble = await self._disk.run(lambda: log.read(released))
        except OSError as error:
            self._log = None
            log.close(0)
            raise store_directory.unusable(self._path, error.strerror or str(error)) from error
        if lost or trouble:
            self.lost_commits = True
            path = str(self._path)
            log_event(logger, logging.ERROR, "commits_lost", path=path, commits=lost, error=trouble)
        self._fd = log.fd()
        asyncio.get_running_loop().add_reader(self._fd, self._finished)
        try:
            await self._disk.run(lambda: store_directory.write_version(self._path))
        except OSError as error:
            self._failed(str(error))
        return records

    async def write(self, payloads: list[bytes]) -> None:
        """Durable on return, in one write. Raises StoreError: then the outcome is not known, and the same may be written again."""
        if self._log is None:
            await self._reopen()
        assert self._log is not None
        self._last_ticket += 1
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writes[self._last_ticket] = (done, payloads)
        self._log.commit(self._last_ticket, payloads)
        await done

    def release(self, sequence: int) -> None:
        """Commits up to that one are needed no more."""
        self._released = sequence
        if self._log is not None and self._fd >= 0:
            self._log.release(sequence)

    async def close(self) -> None:
        """What is being written is waited for, but not for long. Idempotent."""
        log, self._log = self._log, None
        if log is None:
            return
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
        with contextlib.suppress(asyncio.TimeoutError):
            ending = self._disk.run(lambda: log.close(int(END_TIMEOUT_S * 1000)))
            await asyncio.wait_for(ending, 2 * END_TIMEOUT_S)
        for done, _ in self._writes.values():
            if not done.done():
                done.set_exception(StoreError("the metadata store is closed"))
        self._writes.clear()

    async def _reopen(self) -> None:
        """Raises StoreError while there is no space, FencedError when somebody else has the directory by now."""
        async with self._reopening:
            if self._log is not None:
                return
            try:
                await self.lock()
            except StoreError as error:
                if "in use" in str(error):
                    raise FencedError(str(error)) from error
                raise
            if self._log is None:
                raise StoreError(f"metadata store in {self._path}: {self.trouble}")
            if await self.read(self._released):
                raise FencedError(f"another master has written to the metadata store in {self._path}")

    def _finished(self) -> None:
        assert self._log is not None
        for ticket, sequence, why in self._log.finished():
            done, payloads = self._writes.pop(ticket)
            if not sequence:
                self._failed(why)
                self._on_failed()
                if not done.done():
                    done.set_exception(StoreError(f"metadata store in {self._path}: {why}"))
                continue
            self.trouble = ""
            for payload in payloads:
                self._on_durable(sequence, payload)
                sequence += 1
            if not done.done():
                done.set_result(None)

    def _failed(self, why: str) -> None:
        self.trouble = why
        fields = {"path": str(self._path), "error": why, "remedy": store_directory.remedy(why)}
        log_throttled(logger, logging.ERROR, "metadata_store_read_only", "", **fields)
