"""The master's side of the process that has RocksDB: starting it, asking it, ending it. Event loop only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator
from pathlib import Path

from kvstore.common.errors import StoreError
from kvstore.master.metadata.rocksdb_messages import (
    FRAME_BYTES_MAX,
    HEAD,
    SCAN_ID,
    SEQUENCE,
    Reply,
    Request,
    decode_pairs,
    frame,
)
from kvstore.master.metadata.store_directory import PROCESS_ENDED

MODULE = "kvstore.master.metadata.rocksdb_process"


class CanNotOpenError(StoreError):
    """RocksDB's own words on why it does not open the directory."""


class ProcessEndedError(StoreError):
    """The process is gone, and with it what it had not made durable."""


class RocksdbProcess:
    """One run of the process. It is over when `ended` is done, whose result says why."""

    def __init__(self, path: Path, make: bool) -> None:
        """`make`: a directory without a database gets one."""
        self._path = path
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._scans = 0
        self._killed = False
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self._gone = asyncio.Event()
        self.carried = 0  # up to which commit RocksDB has everything
        self.read_only = ""  # why it takes no checkpoint

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Returns when RocksDB is open. Raises CanNotOpenError, or ProcessEndedError."""
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        # The thread that starts the process stays until its end: the kernel ends the process with its parent's thread.
        thread = threading.Thread(target=self._run, args=(theirs,), name="metadata-rocksdb", daemon=True)
        thread.start()
        reader, self._writer = await asyncio.open_connection(sock=mine)
        code, body = await self._receive(reader)
        if code == Reply.CAN_NOT_OPEN:
            raise CanNotOpenError(body.decode(errors="replace"))
        if code != Reply.HELLO:
            raise ProcessEndedError(f"the process of RocksDB began with {code}")
        (self.carried,) = SEQUENCE.unpack_from(body)
        if body[SEQUENCE.size]:
            self.read_only = body[SEQUENCE.size + 1 :].decode(errors="replace")
        self._reading = asyncio.create_task(self._read(reader), name="metadata-rocksdb")
        self._reading.add_done_callback(lambda _: self._end("its answers are read no more"))

    def ask(self, request: Request, body: bytes = b"") -> asyncio.Future[bytes]:
        """The answer's body, later. Raises StoreError with what RocksDB says, or ProcessEndedError."""
        answer: asyncio.Future[bytes] = self._loop.create_future()
        if self.ended.done() or self._writer is None:
            answer.set_exception(ProcessEndedError(f"{PROCESS_ENDED}: {self._why()}"))
        else:
            self._waiting.append(answer)
            self._writer.write(frame(request, body))
        return answer

    async def scan(self, prefix: bytes) -> AsyncGenerator[list[tuple[bytes, bytes]], None]:
        """Pages of what is under the prefix now. The next is on its way while one is looked at."""
        self._scans += 1
        number = SCAN_ID.pack(self._scans)
        await self.ask(Request.SCAN, number + prefix)
        coming = self.ask(Request.NEXT, number)
        try:
            while page := await coming:
                coming = self.ask(Request.NEXT, number)
                yield decode_pairs(page)
        finally:
            _forget(coming)
            _forget(self.ask(Request.END_SCAN, number))

    def kill(self) -> None:
        """At once, also where it hangs. What it had not made durable is in the commit log. Idempotent."""
        self._killed = True
        if self._process is not None:
            self._process.kill()
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.close()
        self._end("it was told to end")

    async def gone(self, timeout_s: float) -> None:
        """Until the kernel has nothing of it any more, and the directory is free; not for longer than that."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._gone.wait(), timeout_s)

    # ---- in its thread ---------------------------------------------------------------------------------------

    def _run(self, theirs: socket.socket) -> None:
        with theirs:
            arguments = [
                str(self._path),
                str(theirs.fileno()),
                str(os.getpid()),
                "make" if self._make else "keep",
            ]
            command = [sys.executable, "-m", MODULE, *arguments]
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
                )
            except OSError as error:
                self._tell(f"it can't be started: {error}")
                return
        self._process = process
        if self._killed:
            process.kill()
        code = process.wait()
        self._tell(f"it was killed by signal {-code}" if code < 0 else f"it ended with {code}")

    def _tell(self, why: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._is_gone, why)

    # ---- on the loop -----------------------------------------------------------------------------------------

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                code, body = await self._receive(reader)
                answer = self._waiting.popleft()
                if answer.done():
                    continue
                if code == Reply.OK:
                    answer.set_result(body)
                else:
                    answer.set_exception(StoreError(body.decode(errors="replace")))
        except (StoreError, IndexError) as error:
            self._end(str(error))

    async def _receive(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        try:
            size, code = HEAD.unpack(await reader.readexactly(HEAD.size))
            if not 1 <= size <= FRAME_BYTES_MAX:
                raise ProcessEndedError(f"the process of RocksDB says a frame of {size} bytes")
            return code, await reader.readexactly(size - 1)
        except (OSError, asyncio.IncompleteReadError) as error:
            # Why, its exit status says.
            done, _ = await asyncio.wait([self.ended], timeout=1.0)
            why = self._why() if done else str(error)
            raise ProcessEndedError(f"{PROCESS_ENDED}: {why}") from error

    def _is_gone(self, why: str) -> None:
        self._gone.set()
        self._end(why)

    def _end(self, why: str) -> None:
        if self.ended.done():
            return
        self.ended.set_result(why)
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            self._process.kill()  # it may live on without having kept to what was agreed
        while self._waiting:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(ProcessEndedError(f"{PROCESS_ENDED}: {why}"))

    def _why(self) -> str:
        return self.ended.result() if self.ended.done() else "not known"


def _forget(answer: asyncio.Future[bytes]) -> None:
    """Nobody waits for it: an error of it is no news."""
    answer.add_done_callback(lambda done: done.cancelled() or done.exception())
