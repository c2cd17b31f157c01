"""How the backend behaves while an engine runs: its time, its hints, what it remembers and what it says."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo
from sglang_harness.case import Case
from sglang_harness.engine import Engine

from hicache_adapter import activity_log, page_store
from hicache_adapter.page_store import PageStore
from kvstore_client import Client
from support.processes import Cluster, segment_metrics
from support.running_cluster import paused, running_cluster
from support.tcp_proxy import TO_CLIENT, TO_SERVER, TcpProxy
from support.waiting import wait_until

T = TypeVar("T")

GRACE_S = 0.5  # on top of a deadline, on a busy two-core machine
BIG = Case(pages=64, layers=16, heads=8, head_dim=64)  # 32 MiB, in one batch


def case_on(store: Cluster, **options: Any) -> Case:
    tag = f"runtime-{os.urandom(4).hex()}"
    return Case(pages=8, options={"masters": store.masters, "tag": tag, "deadline_ms": 3000} | options)


@pytest.fixture
def engine(store: Cluster) -> Iterator[Engine]:
    with Engine(case_on(store)) as opened:
        yield opened


def on_a_storage_thread(call: Callable[[], T]) -> tuple[T, float]:
    """Its answer, and seconds. This thread is the scheduler's: it has attached the backend."""
    answers: list[tuple[T, float]] = []

    def run() -> None:
        started = time.monotonic()
        answer = call()
        answers.append((answer, time.monotonic() - started))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    return answers[0]


# ---- time


@pytest.mark.alone
def test_a_large_batch_over_a_slow_link_is_stored_and_loaded_that_a_fixed_deadline_would_drop(
    tmp_path: Path,
) -> None:
    proxy = TcpProxy()
    try:
        with running_cluster(tmp_path, capacity="128MiB", advertise_port=proxy.port) as store:
            proxy.target_port = store.segments["segment"].wait_event("listening")["port"]
            for direction in (TO_SERVER, TO_CLIENT):
                proxy.pace(direction, 20e6)  # 1.7 s for the batch
            pages_answered = {}
            for name, floor_rate_mib_s in (("grows", 16), ("is fixed", 1 << 20)):
                options = {
                    "masters": store.masters,
                    "same_host": False,
                    "deadline_ms": 1000,
                    "floor_rate_mib_s": floor_rate_mib_s,
                    "tag": "slow",
                }
                with Engine(replace(BIG, options=options)) as engine:
                    slots = engine.host_pool.alloc(BIG.pages * BIG.page_size)
                    engine.fill(slots, seed=1)
                    if name == "grows":
                        hashes, stored = engine.backup(slots, BIG.tokens)
                        assert stored == BIG.pages * BIG.page_size
                    pages_answered[name] = sum(engine.backend.batch_get_v1(hashes, slots, None))
            assert pages_answered["grows"] == BIG.pages
            assert pages_answered["is fixed"] < BIG.pages, "the link is not slow: the test shows nothing"
    finally:
        proxy.close()


@pytest.mark.alone
def test_a_hung_store_costs_a_call_no_more_for_its_bytes_and_the_scheduler_next_to_nothing(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path, capacity="128MiB") as store:
        options = {
            "masters": store.masters,
            "deadline_ms": 600,
            "floor_rate_mib_s": 1,
            "scheduler_deadline_ms": 50,
        }
        with Engine(replace(BIG, options=options)) as engine:
            backend = engine.backend
            slots = engine.host_pool.alloc(BIG.pages * BIG.page_size)
            hashes, stored = engine.backup(slots, BIG.tokens)
            assert stored == BIG.pages * BIG.page_size
            for hung in ((store.segments["segment"],), (store.segments["segment"], store.master)):
                with paused(*hung):
                    started = time.monotonic()
                    assert backend.batch_exists(hashes, None) == 0
                    assert time.monotonic() - started < 0.05 + 0.25  # slices of a wait, a busy machine
                    for call in (backend.batch_get_v1, backend.batch_set_v1):
                        fresh = (
                            [os.urandom(32).hex() for _ in hashes] if call == backend.batch_set_v1 else hashes
                        )
                        answers, seconds = on_a_storage_thread(lambda: call(fresh, slots, None))  # noqa: B023
                        assert answers == [False] * BIG.pages
                        assert seconds < 0.6 + GRACE_S
                wait_until(
                    lambda: backend.batch_get_v1(hashes, slots, None) == [True] * BIG.pages,
                    "the store serves again",
                )


def test_the_call_that_makes_up_for_a_clear_does_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_store, "_CLEAR_RETRY_S", 0.0)  # the next attempt is due at once
    with running_cluster(tmp_path) as store, Engine(case_on(store, deadline_ms=600)) as engine:
        slots = engine.host_pool.alloc(8 * 16)
        hashes, stored = engine.backup(slots, engine.case.tokens)
        assert stored == 8 * 16
        with paused(store.master):
            engine.backend.clear()
            answers, seconds = on_a_storage_thread(lambda: engine.backend.batch_get_v1(hashes, slots, None))
            assert answers == [False] * 8
            assert seconds < 0.6 + GRACE_S


# ---- what is known of the pages


def test_later_batches_of_a_prompt_are_deeper_also_where_nobody_says_what_is_before_them(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    depths: list[int] = []
    real = PageStore.put

    def put(self: PageStore, keys: Any, memory: Any, depth: int, *rest: Any) -> list[bool]:
        depths.append(depth)
        return real(self, keys, memory, depth, *rest)

    monkeypatch.setattr(PageStore, "put", put)
    slots = engine.host_pool.alloc(8 * 16)
    keys = [os.urandom(32).hex() for _ in range(8)]
    backend = engine.backend
    assert backend.batch_exists(keys, HiCacheStorageExtraInfo()) == 0
    for at in (0, 4):
        where = slots[at * 16 : (at + 4) * 16]
        assert backend.batch_set_v1(keys[at : at + 4], where, HiCacheStorageExtraInfo()) == [True] * 4
    told = HiCacheStorageExtraInfo(prefix_keys=["0" * 64] * 9)
    assert backend.batch_set_v1(keys[:4], slots[: 4 * 16], told) == [True] * 4
    assert depths == [0, 4, 9]


def test_a_page_that_was_evicted_is_written_again_however_often_it_was_seen_before(
    store: Cluster, engine: Engine
) -> None:
    backend = engine.backend
    slots = engine.host_pool.alloc(8 * 16)
    engine.fill(slots, seed=3)
    hashes, stored = engine.backup(slots, engine.case.tokens)
    assert stored == 8 * 16
    for _ in range(3):
        assert backend.batch_exists(hashes, None) == 8
        assert backend.batch_get_v1(hashes, slots, None) == [True] * 8
        assert backend.batch_set_v1(hashes, slots, None) == [True] * 8
    page_store = next(iter(backend._stores.values())).of("")
    with Client(store.masters, deadline_ms=5000) as other:
        pages = other.namespace(page_store.identity).pages(shards=page_store.shards)
        assert pages.batch_remove(hashes[3:5]) == [True] * 2
        expected = engine.page_bytes(slots)
        assert backend.batch_get_v1(hashes, slots, None) == [True] * 3 + [False] * 2 + [True] * 3
        engine.fill(slots, seed=3)
        # What an engine does that believes its pages stored: nothing, until it has fallen short.
        assert backend.batch_set_v1(hashes, slots, None) == [True] * 8
        assert pages.batch_exists(hashes) == [True] * 8
    engine.wipe()
    assert backend.batch_get_v1(hashes, slots, None) == [True] * 8
    assert engine.page_bytes(slots) == expected


def hints(action_type: str, **payload: Any) -> HiCacheStorageExtraInfo:
    action = {"action_id": "a", "action_type": action_type, "action_version": "1.0", "payload": payload}
    envelope = {"protocol_version": "0.1", "message_id": "m", "actions": [action]}
    return HiCacheStorageExtraInfo(extra_info={"kv_hints": envelope, "somebody": "else's"})


def test_hints_of_a_request_become_intents_of_its_pages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_cluster(tmp_path) as store, Engine(case_on(store)) as engine:

        def retained() -> int:
            return int(segment_metrics(store.segments["segment"])["retained_objects"])

        backend = engine.backend
        slots = engine.host_pool.alloc(8 * 16)
        keys = [os.urandom(32).hex() for _ in range(8)]
        half = slots[: 4 * 16]
        assert backend.batch_set_v1(keys[:4], half, hints("kv.retain", ttl_ms=600_000)) == [True] * 4
        assert retained() == 4
        assert backend.batch_set_v1(keys, slots, None) == [True] * 8
        assert retained() == 4
        found, _ = on_a_storage_thread(lambda: backend.batch_exists(keys, hints("kv.retain")))
        assert (found, retained()) == (8, 8)
        found, _ = on_a_storage_thread(lambda: backend.batch_exists(keys[:2], hints("kv.demote")))
        assert (found, retained()) == (2, 6)
        with caplog.at_level(logging.WARNING, "hicache_adapter"):
            for _ in range(50):
                assert backend.batch_set_v1(keys[:4], half, hints("kv.retain", ttl_ms=-1)) == [True] * 4
                assert backend.batch_set_v1(keys[:4], half, hints("kv.fetch", anything=1)) == [True] * 4
        assert len([line for line in caplog.messages if "kv_hints" in line]) == 1
        assert retained() == 6


def test_a_second_kv_pool_takes_the_place_of_the_first_one(store: Cluster) -> None:
    with (
        Engine(replace(case_on(store), allocator="shm")) as engine,
        Engine(replace(case_on(store), allocator="shm")) as other,
    ):
        backend, returned = engine.backend, []
        real = backend._client.unregister
        backend._client.unregister = lambda address: (returned.append(address), real(address))
        backend.register_mem_pool_host(engine.host_pool)
        assert returned == [engine.host_pool.kv_buffer.data_ptr()]
        backend.register_mem_pool_host(other.host_pool)
        assert returned == [engine.host_pool.kv_buffer.data_ptr()] * 2
        slots = other.host_pool.alloc(8 * 16)
        keys = [os.urandom(32).hex() for _ in range(8)]
        assert backend.batch_set_v1(keys, slots, None) == [True] * 8


# ---- what is said and prepared


def test_a_line_now_and_then_says_what_the_engine_has_had_of_the_store(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = engine.host_pool.alloc(8 * 16)
    assert engine.backup(slots, engine.case.tokens)[1] == 8 * 16
    assert engine.prefetch(engine.case.tokens).completed_tokens == 8 * 16
    monkeypatch.setattr(engine.backend._activity, "_due", 0.0)
    with caplog.at_level(logging.INFO, "hicache_adapter"):
        engine.backend.batch_exists(["f" * 64], None)
        engine.backend.batch_exists(["f" * 64], None)
    (line,) = [message for message in caplog.messages if "asked for" in message]
    for said in (
        "tp 0/1",
        "asked for 9, there 8",
        "loaded 8",
        "missed 0",
        "stored 8",
        "refused 0",
        "troubles: none",
    ):
        assert said in line
    assert activity_log.INTERVAL_S >= 30


def test_the_hash_extension_is_loaded_and_the_store_greeted_before_anything_is_asked(
    store: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.mem_cache.cpp_utils import native_hash

    native_hash._load_native_hash_module.cache_clear()
    with Engine(case_on(store)) as engine:
        wait_until(
            lambda: native_hash._load_native_hash_module.cache_info().currsize == 1,
            "SGLang's hash extension is loaded",
        )
        wait_until(lambda: engine.backend._client.segments(), "the store is connected")

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr("sglang.srt.mem_cache.utils.get_hash_str", fails)
    with Engine(case_on(store)) as engine:
        assert engine.backend.batch_exists(["f" * 64], None) == 0


FIRST_ATTACH = """
import sys, time
sys.path[:0] = sys.argv[1:]
import cpu_shims
cpu_shims.install()
from sglang_harness.case import Case
from sglang_harness.engine import Engine
case = Case(pages=8, options={"masters": "127.0.0.1:1", "deadline_ms": 300})
with Engine(case) as engine:
    began = time.monotonic()
    assert engine.backend.batch_exists(["f" * 64], None) == 0
    print("answered", time.monotonic() - began)
    from sglang.srt.mem_cache.cpp_utils import native_hash
    while native_hash._load_native_hash_module.cache_info().currsize == 0:
        time.sleep(0.1)
    print("compiled", time.monotonic() - began)
    began = time.monotonic()
    engine.prefetch(case.tokens)
    print("asked", time.monotonic() - began)
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_on_a_fresh_machine_the_extension_is_compiled_beside_the_first_calls(tmp_path: Path) -> None:
    here = Path(__file__).resolve().parent
    ran = subprocess.run(
        [sys.executable, "-c", FIRST_ATTACH, str(here), str(here / "shims")],
        env=os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    seconds = {line.split()[0]: float(line.split()[1]) for line in ran.stdout.splitlines() if " " in line}
    assert seconds["compiled"] > 3 * max(seconds["answered"], seconds["asked"]), seconds
    assert seconds["answered"] < 0.3 + GRACE_S
