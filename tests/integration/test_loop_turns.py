"""However many pages there are, no turn of the master's event loop takes long: requests of clients wait for nothing else.

KVSTORE_STALL_ENTRIES sets how many pages it is tried with (300,000 where it is not set). What is measured is CPU time, for others may
use the machine meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvstore.common.errors import KvstoreError
from kvstore.master.directory import Directory
from kvstore.master.metadata.registry import metadata_store
from kvstore.master.metrics import MasterMetrics
from kvstore.master.recovery import recover
from kvstore.master.state import events as ev
from kvstore.master.state.directory_state import StateLimits
from kvstore.master.state.placement import POLICIES
from kvstore.master.state.segment_logs import RECORD_ENTRIES_MAX
from kvstore_client.protocol import Status
from kvstore_client.protocol.journal import JournalGroup, JournalOp
from support.master_peers import until
from support.state_rig import NS, ModelSegment

PAGES = int(os.environ.get("KVSTORE_STALL_ENTRIES", "300000"))
SEGMENTS = 4
TURN_MS_MAX = 20.0
TIMEOUT_S = 60 + PAGES / 100_000


class Turns:
    """The longest turn of the event loop, by what was going on; each thing that is ready gets one callback in a turn."""

    def __init__(self) -> None:
        self.longest_ms: dict[str, float] = {}
        self._what = ""
        self._task = asyncio.create_task(self._run())

    def now(self, what: str) -> None:
        self._what = what

    def stop(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            took_ms = (now - before) * 1e3
            self.longest_ms[self._what] = max(self.longest_ms.get(self._what, 0.0), took_ms)
            before = now


class Session:
    """A segment's stream: takes note of what the directory says."""

    def __init__(self) -> None:
        self.durable_seq = 0
        self.accepted = False

    def accept(self, segment_index: int, durable_seq: int, need_inventory: bool) -> None:
        self.accepted = True

    def ack(self, durable_seq: int) -> None:
        self.durable_seq = durable_seq

    def request_inventory(self) -> None: ...
    def retire_namespaces(self, *_: object) -> None: ...
    def limit_quotas(self, *_: object) -> None: ...
    def refuse_entries(self, last_seq: int, entries: int, reason: str) -> None: ...
    def close(self, status: Status, reason: str) -> None: ...


@pytest.fixture
async def directory(tmp_path: Path) -> AsyncIterator[Directory]:
    store = metadata_store(f"rocksdb://{tmp_path}/metadata")
    await store.open()
    fence = await store.acquire()
    failed: list[KvstoreError] = []
    directory = Directory(
        store,
        fence,
        await recover(store, fence, lambda record: None),
        StateLimits(),
        POLICIES["host-first"](random.Random(1)),
        MasterMetrics(),
        run_bytes=1 << 20,
        on_fenced=failed.append,
        on_failed=failed.append,
    )
    directory.start()
    yield directory
    await directory.stop()
    await store.close()
    assert failed == []


def added(batch: int) -> bytes:
    """A journal of RECORD_ENTRIES_MAX pages that no other batch has."""
    fingerprints = random.Random(batch).randbytes(16 * RECORD_ENTRIES_MAX)
    return JournalGroup(JournalOp.ADD, NS, fingerprints, (4096,) * RECORD_ENTRIES_MAX).encode()


@pytest.mark.alone
async def test_no_turn_takes_long_while_the_directory_grows_is_inventoried_and_loses_a_segment(
    directory: Directory,
) -> None:
    rng = random.Random(1)
    models = [ModelSegment(number, rng) for number in range(SEGMENTS)]
    sessions = [Session() for _ in models]
    numbers = [directory.open_session(session) for session in sessions]
    for number, model in zip(numbers, models, strict=True):
        directory.handle(ev.SegmentAttached(number, model.registration()))
    await until(lambda: all(session.accepted for session in sessions), "all are registered")
    batches = -(-PAGES // RECORD_ENTRIES_MAX)
    journals = [added(batch) for batch in range(batches)] if PAGES <= 1_000_000 else None
    sent = [0] * SEGMENTS
    gc.collect()
    gc.disable()
    turns = Turns()
    try:
        for batch in range(batches):
            turns.now("")  # making a journal is the test's work
            groups = journals[batch] if journals is not None else await asyncio.to_thread(added, batch)
            await asyncio.sleep(0)
            turns.now("growing")
            at = batch % SEGMENTS
            first, sent[at] = sent[at] + 1, sent[at] + RECORD_ENTRIES_MAX
            directory.handle(ev.JournalReceived(numbers[at], first, sent[at], groups))
            await asyncio.sleep(0)
            await directory.committer.wait_for_room()
        await until(
            lambda: [s.durable_seq for s in sessions] == sent, "everything is durable", timeout_s=TIMEOUT_S
        )
        assert directory.index.entry_count == batches * RECORD_ENTRIES_MAX

        # An inventory without the first of the segment's batches.
        own = range(0, batches, SEGMENTS)
        for batch in own[1:] or own:
            turns.now("")
            groups = journals[batch] if journals is not None else await asyncio.to_thread(added, batch)
            await asyncio.sleep(0)
            turns.now("inventory")
            first, last = batch == own[1], batch == own[-1]
            directory.handle(ev.InventoryReceived(numbers[0], sent[0], groups, first, last))
            await asyncio.sleep(0)
            await directory.committer.wait_for_room()
        entries = (batches - 1) * RECORD_ENTRIES_MAX
        await until(
            lambda: directory.index.entry_count == entries, "the inventory counts", timeout_s=TIMEOUT_S
        )

        turns.now("drop")
        directory.handle(ev.SegmentLeaving(numbers[1], "scaled in"))
        entries -= len(range(1, batches, SEGMENTS)) * RECORD_ENTRIES_MAX
        await until(lambda: directory.index.entry_count == entries, "it is dropped", timeout_s=TIMEOUT_S)
    finally:
        turns.stop()
        gc.enable()
    turns.longest_ms.pop("", None)
    print({what: round(longest, 2) for what, longest in turns.longest_ms.items()})
    assert turns.longest_ms.keys() == {"growing", "inventory", "drop"}
    assert max(turns.longest_ms.values()) < TURN_MS_MAX, turns.longest_ms
