"""The making of a segment's pool: watched, said how far it is, and called off when nobody wants it any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from kvstore.common.logs import log_event
from kvstore.common.sizes import format_size
from kvstore.segment.errors import SegmentStartError
from kvstore.segment.pool_place import PoolPlace, pools_left_behind
from kvstore.segment.pool_watch import PoolFile
from kvstore_client._native import PoolPlaceError, PoolProgress, PoolRefusedError, SegmentStore

logger = logging.getLogger(__name__)

PROGRESS_LOG_S = 5.0

# What makes the store, given the path of its file ("" for none) and where to say how far it is. In a thread.
MakeStore = Callable[[str, PoolProgress], SegmentStore]


class PoolMaking:
    """One pool, made once. Event loop only, but for what `make` is given."""

    def __init__(
        self, place: PoolPlace, capacity_bytes: int, moved_from: Mapping[Path, int] | None = None
    ) -> None:
        """`moved_from`: the pool that this segment had elsewhere, and its size."""
        self._place = place
        self._moved_from = dict(moved_from or {})
        self._capacity_bytes = capacity_bytes
        self._progress = PoolProgress()
        self._store: SegmentStore | None = None
        self.file: PoolFile | None = None
        """That the pool is, once it is made; None when it ends with the process."""

    @property
    def path(self) -> Path | None:
        """Of that file."""
        return self.file.path if self.file is not None else None

    @property
    def kept_at(self) -> Path | None:
        """The file in which the next process finds the pool: None, too, when it was removed or replaced meanwhile."""
        return self.path if self.file is not None and self.file.now() is not None else None

    async def make(self, make: MakeStore) -> SegmentStore:
        """SegmentStartError when there can't be one. Cancelled, it ends when what was begun is undone."""
        began = asyncio.get_running_loop().time()
        making = asyncio.create_task(asyncio.to_thread(self._make, make), name="make-pool")
        try:
            store = self._store = await self._watched(making)
        except asyncio.CancelledError:
            self._progress.cancel()
            # The process waits for its threads anyway.
            (made,) = await asyncio.gather(making, return_exceptions=True)
            if isinstance(
                made, SegmentStore
            ):  # too late to be called off: what it made is to be undone all the same
                self._store = made
                await asyncio.to_thread(made.close)
            raise
        except (MemoryError, OSError, ValueError, PoolPlaceError, PoolRefusedError) as error:
            raise SegmentStartError(
                f"the pool of {format_size(self._capacity_bytes)} can't be made: {error}"
            ) from error
        seconds = asyncio.get_running_loop().time() - began
        log_event(
            logger,
            logging.INFO,
            "pool_ready",
            pool=str(self.path or "memory of this process"),
            adopted=store.pool_adopted,
            touched_bytes=self._progress.touched_bytes,
            seconds=round(seconds, 3),
            gb_per_s=_gb_per_s(self._progress.touched_bytes, seconds),
            huge_page_bytes=store.pool_page_bytes,
        )
        return store

    def discard_new(self) -> None:
        """For a start that failed afterwards: a file that was made for it goes, and gives its memory back."""
        path = self.kept_at
        if path is not None and self._store is not None and not self._store.pool_adopted:
            path.unlink(missing_ok=True)

    def stats(self) -> dict[str, int]:
        """What the metrics tell of it, before it is there and after."""
        store = self._store
        return {
            "bytes": self._progress.total_bytes,
            "touched_bytes": self._progress.touched_bytes,
            "locked_bytes": self._progress.locked_bytes,
            "verified_bytes": self._progress.scanned_bytes,
            "huge_page_bytes": store.pool_page_bytes if store is not None else 0,
            "kept": int(self.kept_at is not None),
            "adopted_objects": store.pool_content()["objects"] if store is not None else 0,
        }

    def state(self) -> str:
        """How far it is, for people."""
        progress = self._progress
        total = format_size(progress.total_bytes or self._capacity_bytes)
        if progress.adopted_objects:
            return f"the pages that are there are being taken over: {progress.adopted_objects} so far"
        if progress.scanned_bytes:
            return f"the pages that are there are being verified: {format_size(progress.scanned_bytes)} of {total} so far"
        if progress.locked_bytes:
            return f"the pool is being locked: {format_size(progress.locked_bytes)} of {total}"
        return f"the pool is being touched: {format_size(progress.touched_bytes)} of {total}"

    def _make(self, make: MakeStore) -> SegmentStore:
        """In a thread."""
        path = self._place.path
        self._say_left_behind(path)
        if path is not None:
            try:
                store = make(str(path), self._progress)
            except PoolPlaceError as error:
                if self._place.required:
                    raise
                log_event(logger, logging.WARNING, "pool_not_kept", why=str(error))
            else:
                self.file = PoolFile.at(path)
                return store
        return make("", self._progress)

    def _say_left_behind(self, path: Path | None) -> None:
        left = self._moved_from
        if path is not None and not self._place.required:
            left = left | pools_left_behind(path)
        if left:
            log_event(
                logger,
                logging.WARNING,
                "pools_left_behind",
                files=" ".join(map(str, left)),
                bytes=sum(left.values()),
            )

    async def _watched(self, making: asyncio.Task[SegmentStore]) -> SegmentStore:
        """Touching every page of a large pool takes seconds, or minutes: says how far it is."""
        loop = asyncio.get_running_loop()
        before, then = 0, loop.time()
        while True:
            done, _ = await asyncio.wait({making}, timeout=PROGRESS_LOG_S)
            if done:
                return making.result()
            touched, now = self._progress.touched_bytes, loop.time()
            log_event(
                logger,
                logging.INFO,
                "memory_being_touched",
                touched_bytes=touched,
                locked_bytes=self._progress.locked_bytes,
                verified_bytes=self._progress.scanned_bytes,
                adopted_objects=self._progress.adopted_objects,
                total_bytes=self._progress.total_bytes,
                gb_per_s=_gb_per_s(touched - before, now - then),
            )
            before, then = touched, now


def _gb_per_s(size_bytes: int, seconds: float) -> float:
    return round(size_bytes / 1e9 / max(seconds, 1e-6), 2)
