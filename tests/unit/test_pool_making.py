"""The making of a pool that is called off when it is too late for that."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.segment.pool_making import PoolMaking
from kvstore.segment.pool_place import PoolPlace
from kvstore_client._native import PoolProgress, SegmentStore

CAPACITY_BYTES = 4 << 20


@pytest.fixture
def pool_file() -> Iterator[Path]:
    path = Path(f"/dev/shm/kvstore-test-{os.getpid()}-{os.urandom(4).hex()}")
    yield path
    path.unlink(missing_ok=True)


def make_store(path: str, progress: PoolProgress) -> SegmentStore:
    return SegmentStore(
        capacity_bytes=CAPACITY_BYTES,
        pool_id=bytes(15) + b"\1",
        segment_id=bytes(15) + b"\2",
        pool_path=path,
        progress=progress,
    )


async def call_off_at_the_last_moment(pool_file: Path) -> None:
    """Made whole, in its thread, when the loop is told that nobody wants it."""
    made, go_on = threading.Event(), threading.Event()

    def make(path: str, progress: PoolProgress) -> SegmentStore:
        store = make_store(path, progress)
        made.set()
        assert go_on.wait(30)
        return store

    making = PoolMaking(PoolPlace(pool_file, required=True), CAPACITY_BYTES)
    task = asyncio.create_task(making.make(make))
    assert await asyncio.to_thread(made.wait, 30)
    task.cancel()
    asyncio.get_running_loop().call_soon(go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    making.discard_new()


async def test_a_pool_that_is_made_when_it_is_called_off_is_gone_with_its_file(pool_file: Path) -> None:
    await call_off_at_the_last_moment(pool_file)
    assert not await asyncio.to_thread(pool_file.exists)


async def test_a_pool_of_the_process_before_stays_when_its_adoption_is_called_off(pool_file: Path) -> None:
    make_store(str(pool_file), PoolProgress()).close()
    await call_off_at_the_last_moment(pool_file)
    again = make_store(str(pool_file), PoolProgress())
    assert again.pool_adopted
    again.close()
