"""Upkeep that fails costs a line in the log and is tried again; the master goes on."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from kvstore.common.errors import KvstoreError, StoreError
from kvstore.master.directory import Directory
from kvstore.master.metadata.memory import MemoryStore
from kvstore.master.metrics import MasterMetrics
from kvstore.master.recovery import corruption_reporter, recover
from kvstore.master.state import effects as ef
from kvstore.master.state import events as ev
from kvstore.master.state.directory_state import StateLimits
from kvstore.master.state.layout import Snapshot
from kvstore.master.state.placement import POLICIES
from support.master_peers import until


@pytest.mark.parametrize(("error", "is_bug"), [(StoreError("disk"), False), (RuntimeError("bug"), True)])
async def test_a_compaction_that_fails_is_told_and_ends_nothing(
    error: Exception, is_bug: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, metrics, failures = MemoryStore(), MasterMetrics(), list[KvstoreError]()
    await store.open()
    fence = await store.acquire()
    directory = Directory(
        store,
        fence,
        await recover(store, fence, corruption_reporter(metrics)),
        StateLimits(),
        POLICIES["host-first"](random.Random(1)),
        metrics,
        run_bytes=1 << 20,
        on_fenced=failures.append,
        on_failed=failures.append,
    )

    async def fails(*_: object) -> ev.CompactionEnded:
        raise error

    handled: list[ev.Event] = []
    monkeypatch.setattr(directory._compactor, "compact", fails)
    monkeypatch.setattr(directory, "handle", handled.append)
    directory.start()
    directory._perform(ef.CompactLog(b"s" * 16, 3, 0, Snapshot(), 10))
    # The state machine waits before it orders the next.
    await until(lambda: ev.CompactionFailed(b"s" * 16, 3) in handled, "the state machine to hear of it")
    await asyncio.sleep(0)
    assert failures == []
    (line,) = [record for record in caplog.records if record.getMessage() == "compaction_failed"]
    assert (line.levelno, bool(line.exc_info)) == (logging.WARNING, is_bug)
    await directory.stop()
