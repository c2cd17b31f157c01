"""What SGLang relies on, method by method: types, lengths, deadlines, and nothing ever raised."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang_harness.case import Case
from sglang_harness.engine import Engine

from hicache_adapter import ConfigError
from support.processes import Cluster
from support.running_cluster import paused, running_cluster
from support.waiting import wait_until

NOWHERE = "127.0.0.1:1"
GRACE_S = 0.5  # on top of a deadline, on a busy two-core machine
KEYS = [hashlib.sha256(bytes([number])).hexdigest() for number in range(4)]


def small_case(masters: str, **changes: Any) -> Case:
    options = {"masters": masters, "deadline_ms": 300} | changes.pop("options", {})
    return replace(Case(pages=8, options=options), **changes)


@pytest.fixture
def engine(store: Cluster, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine on the session's store, with a namespace of its own."""
    options = {"tag": f"{request.node.name}-{os.urandom(4).hex()}", "deadline_ms": 3000}
    with Engine(small_case(store.masters, options=options)) as opened:
        yield opened


def every_answer(engine: Engine, backend: Any) -> dict[str, Any]:
    """Each method of the data path once, with well-formed arguments."""
    from sglang.srt.mem_cache.hicache_storage import PoolTransfer

    slots = engine.host_pool.alloc(len(KEYS) * engine.case.page_size)
    flat = [engine.host_pool.get_dummy_flat_data_page() for _ in KEYS]
    transfers = [PoolTransfer("indexer", host_indices=slots, keys=KEYS), PoolTransfer("mamba", keys=KEYS[:1])]
    answers = {
        "batch_exists": backend.batch_exists(KEYS, None),
        "batch_get_v1": backend.batch_get_v1(KEYS, slots, None),
        "batch_set_v1": backend.batch_set_v1(KEYS, slots, None),
        "batch_get": backend.batch_get(KEYS, flat),
        "batch_set": backend.batch_set(KEYS, flat),
        "get": backend.get(KEYS[0], flat[0]),
        "set": backend.set(KEYS[0], flat[0]),
        "exists": backend.exists(KEYS[0]),
        "batch_get_v2": backend.batch_get_v2(transfers, extra_info=None),
        "batch_set_v2": backend.batch_set_v2(transfers, extra_info=None),
        "batch_exists_v2": backend.batch_exists_v2(KEYS, transfers, None).kv_hit_pages,
        "clear": backend.clear(),
        "get_stats": backend.get_stats(),
    }
    engine.host_pool.free(slots)
    return answers


NOTHING: dict[str, Any] = {
    "batch_exists": 0,
    "batch_get_v1": [False] * 4,
    "batch_set_v1": [False] * 4,
    "batch_get": [None] * 4,
    "batch_set": False,
    "get": None,
    "set": False,
    "exists": False,
    "batch_get_v2": {"indexer": [False] * 4, "mamba": [False]},
    "batch_set_v2": {"indexer": [False] * 4, "mamba": [False]},
    "batch_exists_v2": 0,
    "clear": None,
    "get_stats": None,
}


def check_nothing(answers: dict[str, Any]) -> None:
    assert answers == NOTHING
    for name, answer in answers.items():
        assert type(answer) is type(NOTHING[name]), name
        for item in answer if isinstance(answer, list) else []:
            assert type(item) in (bool, type(None)), name


@pytest.mark.alone
def test_an_absent_store_answers_as_an_empty_one_within_the_deadlines() -> None:
    with Engine(small_case(NOWHERE)) as engine:
        started = time.monotonic()
        check_nothing(every_answer(engine, engine.backend))
        assert time.monotonic() - started < len(NOTHING) * (0.3 + GRACE_S)


def test_an_engine_starts_and_works_without_a_store() -> None:
    with Engine(small_case(NOWHERE)) as engine:
        slots = engine.host_pool.alloc(8 * 16)
        assert engine.backup(slots, engine.case.tokens)[1] == 0
        assert engine.prefetch(engine.case.tokens).hit_tokens == 0


@pytest.mark.alone
def test_a_hung_store_costs_each_call_its_deadline_at_most_and_comes_back(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as store, Engine(small_case(store.masters)) as engine:
        slots = engine.host_pool.alloc(8 * 16)
        engine.fill(slots, seed=1)
        hashes, stored = engine.backup(slots, engine.case.tokens)
        assert stored == 8 * 16
        backend = engine.backend
        with paused(store.segments["segment"], store.master):
            for _ in range(2):
                for call in (
                    lambda: backend.batch_exists(hashes, None),
                    lambda: backend.batch_get_v1(hashes, slots, None),
                    lambda: backend.batch_set_v1(KEYS, slots[: 4 * 16], None),
                ):
                    started = time.monotonic()
                    call()
                    assert time.monotonic() - started < 0.3 + GRACE_S
        wait_until(lambda: backend.batch_get_v1(hashes, slots, None) == [True] * 8, "the store serves again")


def test_no_byte_lands_in_a_page_after_a_timed_out_get_has_returned(tmp_path: Path) -> None:
    case = replace(small_case(""), options={}, layers=16, heads=8, head_dim=64)
    for transport in ({"same_host": False}, {"tcp": False}):
        with running_cluster(tmp_path / str(transport)) as store:
            options = {"masters": store.masters, "deadline_ms": 300, **transport}
            with Engine(replace(case, options=options)) as engine:
                slots = engine.host_pool.alloc(8 * 16)
                engine.fill(slots, seed=2)
                hashes, stored = engine.backup(slots, case.tokens)
                assert stored == 8 * 16
                with paused(store.segments["segment"]):
                    answers = engine.backend.batch_get_v1(hashes, slots, None)
                    engine.wipe()  # SGLang gives the pages of misses to someone else
                if transport == {"same_host": False}:
                    assert answers == [False] * 8
                wait_until(
                    lambda: engine.backend.batch_exists(hashes, None) == 8,  # noqa: B023
                    "the store serves again",
                )
                assert set(b"".join(engine.page_bytes(slots))) == {0}


@pytest.mark.parametrize("keys", [[""], ["zz" * 32], ["x" * 300], [None], [7], ["0" * 63], [b"0" * 64]])
def test_garbage_keys_are_misses(engine: Engine, keys: list[Any]) -> None:
    slots = engine.host_pool.alloc(16)
    backend = engine.backend
    assert backend.batch_exists(keys, None) == 0
    assert backend.batch_get_v1(keys, slots, None) == [False]
    assert backend.exists(keys[0]) is False
    assert backend.get(keys[0], engine.host_pool.get_dummy_flat_data_page()) is None


def test_host_indices_that_are_not_whole_aligned_pages_inside_the_pool_are_refused(engine: Engine) -> None:
    backend, page = engine.backend, torch.arange(16)
    good = torch.cat([page, page + 64])
    bad = {
        "too short": good[:-1],
        "too long": torch.cat([good, page]),
        "unaligned": good + 1,
        "negative": page.repeat(2) - 64,
        "outside": good + engine.host_pool.size,
        "not contiguous": torch.cat([page.flip(0), page.flip(0) + 64]),
        "empty": good[:0],
    }
    for name, host_indices in bad.items():
        assert backend.batch_set_v1(KEYS[:2], host_indices, None) == [False, False], name
        assert backend.batch_get_v1(KEYS[:2], host_indices, None) == [False, False], name
    assert backend.batch_set_v1(KEYS[:2], good, None) == [True, True]


def test_one_bad_page_of_a_batch_fails_alone(engine: Engine) -> None:
    backend, page = engine.backend, torch.arange(16)
    slots = torch.cat([page, page + 64 + 1, page + 128, page + 192])
    keys: list[Any] = [KEYS[0], KEYS[1], None, KEYS[3]]
    expected = [True, False, False, True]  # unaligned, no key
    assert backend.batch_set_v1(keys, slots, None) == expected
    assert backend.batch_get_v1(keys, slots, None) == expected
    assert backend.batch_exists(KEYS, None) == 1
    assert backend.batch_exists([KEYS[0], None, KEYS[3]], None) == 1
    flat = [engine.host_pool.get_dummy_flat_data_page() for _ in keys]
    flat[1] = flat[1][:-1]
    assert [answer is not None for answer in backend.batch_get(keys, flat)] == expected


@pytest.mark.parametrize("extra_info", [None, {}, {"unknown": 1}, object(), ("a tuple",), 7])
def test_extra_info_of_any_form_is_tolerated(engine: Engine, extra_info: Any) -> None:
    slots = engine.host_pool.alloc(4 * 16)
    assert engine.backend.batch_set_v1(KEYS, slots, extra_info) == [True] * 4
    assert engine.backend.batch_exists(KEYS, extra_info) == 4
    assert engine.backend.batch_get_v1(KEYS, slots, extra_info) == [True] * 4


def test_empty_batches_answer_empty(engine: Engine) -> None:
    none = torch.arange(0)
    assert engine.backend.batch_exists([], None) == 0
    assert engine.backend.batch_get_v1([], none, None) == []
    assert engine.backend.batch_set_v1([], none, None) == []


def test_exists_counts_the_leading_run_over_more_keys_than_one_request_takes(engine: Engine) -> None:
    slots = engine.host_pool.alloc(8 * 16)
    hashes, _ = engine.backup(slots, engine.case.tokens)
    backend = engine.backend
    many = hashes + [hashlib.sha256(str(number).encode()).hexdigest() for number in range(70_000)]
    assert backend.batch_exists(many, None) == 8
    assert backend.batch_exists(hashes[:3] + KEYS[:1] + hashes[3:], None) == 3
    assert backend.batch_exists(KEYS + hashes, None) == 0


def test_writing_a_page_again_is_success(engine: Engine) -> None:
    slots = engine.host_pool.alloc(4 * 16)
    for _ in range(2):
        assert engine.backend.batch_set_v1(KEYS, slots, None) == [True] * 4


def test_closing_twice_and_using_it_afterwards_is_harmless(engine: Engine) -> None:
    backend = engine.backend
    backend.close()
    backend.close()
    check_nothing(every_answer(engine, backend))


def test_attaching_and_detaching_leaves_no_descriptor_and_no_thread(store: Cluster) -> None:
    with Engine(small_case(store.masters, options={"deadline_ms": 3000})) as engine:
        controller = engine.controller
        slots = engine.host_pool.alloc(8 * 16)

        def cycle() -> None:
            assert engine.backup(slots, engine.case.tokens)[1] == 8 * 16
            controller.detach_storage_backend()
            controller.attach_storage_backend(
                "dynamic",
                prefetch_threshold=16,
                model_name="m",
                storage_backend_extra_config=engine.case.extra_config,
            )

        for _ in range(3):
            cycle()
        before = descriptors_and_threads()
        for _ in range(20):
            cycle()
        wait_until(
            lambda: descriptors_and_threads() <= before, f"no more descriptors and threads than {before}"
        )


def descriptors_and_threads() -> tuple[int, int, int]:
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), threading.active_count()


def test_a_side_pool_turns_the_backend_off_and_is_named_once(
    store: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    from sglang.srt.mem_cache.hicache_storage import PoolName
    from sglang.srt.mem_cache.pool_host import PoolEntry

    with ExitStack() as stack:
        donor = stack.enter_context(Engine(small_case(NOWHERE, layers=1)))
        with caplog.at_level(logging.ERROR, "hicache_adapter"):
            engine = stack.enter_context(
                Engine(
                    small_case(store.masters),
                    side_pools=lambda *_: [
                        PoolEntry(PoolName.INDEXER, donor.host_pool, donor.device_pool, lambda layer: None)
                    ],
                )
            )
            check_nothing(every_answer(engine, engine.backend))
            slots = engine.host_pool.alloc(8 * 16)
            assert engine.backup(slots, engine.case.tokens)[1] == 0
            assert engine.prefetch(engine.case.tokens).hit_tokens == 0
    named = [record for record in caplog.records if "'indexer'" in record.getMessage()]
    assert len(named) == 1


def test_clear_hides_what_was_stored(engine: Engine) -> None:
    slots = engine.host_pool.alloc(8 * 16)
    hashes, stored = engine.backup(slots, engine.case.tokens)
    assert stored == 8 * 16
    engine.backend.clear()
    assert engine.backend.batch_exists(hashes, None) == 0
    assert engine.backup(slots, engine.case.tokens)[1] == 8 * 16


def test_a_clear_that_found_no_master_is_made_up_for_before_anything_is_loaded(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as store, Engine(small_case(store.masters)) as engine:
        slots = engine.host_pool.alloc(8 * 16)
        hashes, stored = engine.backup(slots, engine.case.tokens)
        assert stored == 8 * 16
        store.master.kill()
        engine.backend.clear()
        assert engine.backend.batch_get_v1(hashes, slots, None) == [False] * 8
        store.start_master()

        def stores_again() -> bool:
            assert engine.backend.batch_exists(hashes, None) == 0, "pages that were cleared came back"
            return bool(engine.backend.batch_set_v1(KEYS, slots[: 4 * 16], None) == [True] * 4)

        wait_until(stores_again, "the store serves again", timeout_s=20)


def test_metrics_are_storage_metrics_drained_on_read_or_none(store: Cluster) -> None:
    from sglang.srt.observability.metrics_collector import StorageMetrics

    with Engine(small_case(store.masters, metrics=True, options={"deadline_ms": 3000})) as engine:
        slots = engine.host_pool.alloc(8 * 16)
        assert engine.backup(slots, engine.case.tokens)[1] == 8 * 16
        assert engine.prefetch(engine.case.tokens).completed_tokens == 8 * 16
        metrics = engine.backend.get_stats()
        assert isinstance(metrics, StorageMetrics)
        assert (metrics.backup_pgs, metrics.prefetch_pgs) == ([8], [8])
        assert metrics.backup_bandwidth[0] > 0 and metrics.prefetch_bandwidth[0] > 0
        assert engine.backend.get_stats() == StorageMetrics()
    with Engine(small_case(NOWHERE)) as engine:
        assert engine.backend.get_stats() is None


# ---- configuration errors: loud, at construction


def test_missing_masters_stop_the_engine_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVSTORE_MASTERS", raising=False)
    with pytest.raises(ValueError, match=r"masters: .*KVSTORE_MASTERS"):
        Engine(replace(Case(), options={}))


def test_fp8_of_unknown_kind_turns_the_store_off(store: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with Engine(small_case(store.masters, dtype="float8_e4m3fn")) as engine:
        slots = engine.host_pool.alloc(8 * 16)
        assert engine.backup(slots, engine.case.tokens)[1] == 0
        assert engine.prefetch(engine.case.tokens).hit_tokens == 0
    (line,) = [line for line in caplog.messages if "nothing is stored or loaded" in line]
    assert '"kv_dtype": "fp8_e4m3"' in line


def test_the_two_kinds_of_fp8_never_meet(store: Cluster) -> None:
    hits = {}
    for kind in ("fp8_e4m3", "fp8_e5m2"):
        options = {"kv_dtype": kind, "tag": "fp8", "deadline_ms": 3000}
        with Engine(small_case(store.masters, dtype="float8_e4m3fn", options=options)) as engine:
            hits[kind] = engine.prefetch(engine.case.tokens).hit_tokens
            slots = engine.host_pool.alloc(8 * 16)
            assert engine.backup(slots, engine.case.tokens)[1] == 8 * 16
            assert engine.prefetch(engine.case.tokens).hit_tokens == 8 * 16
    assert hits == {"fp8_e4m3": 0, "fp8_e5m2": 0}


def test_heads_that_tp_lcm_size_can_not_split_stop_the_engine_at_start() -> None:
    with pytest.raises(ConfigError, match=r"^tp_lcm_size: "):
        Engine(small_case(NOWHERE, layout="page_head", heads=1, tp_size=2, tp_lcm_size=4))


VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "layer_first": {"layout": "layer_first"},
    "page_first_direct": {"layout": "page_first_direct"},
    "page_head": {"layout": "page_head"},
    "layer_first v0": {"layout": "layer_first", "interface_v1": 0},
    "float16": {"dtype": "float16"},
    "page size": {"page_size": 32},
    "heads": {"heads": 2},
    "head width": {"head_dim": 32},
    "asymmetric": {"kind": "mha_asymmetric"},
    "mla": {"kind": "mla"},
    "mla page_first_direct": {"kind": "mla", "layout": "page_first_direct"},
    "model": {"model_name": "acme/other"},
    "device layout": {"env": {"SGLANG_USE_HND_KVCACHE": "1"}},
    "revision": {"options": {"revision": "2"}},
    "tag": {"options": {"tag": "blue"}},
}


def test_engines_that_differ_in_anything_that_changes_bytes_have_disjoint_namespaces(
    store: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners: dict[str, str] = {}
    for name, variant in VARIANTS.items():
        changes = dict(variant)
        with monkeypatch.context() as environment:
            for variable, value in changes.pop("env", {}).items():
                environment.setenv(variable, value)
            engine = Engine(small_case(store.masters, **changes))
        with engine:
            backend = engine.backend
            assert backend.batch_exists(KEYS, None) == 0
            for store_of_pages in (stores.of("") for stores in backend._stores.values()):
                if store_of_pages.identity.byte_order.endswith("/flat") == (changes.get("interface_v1") == 0):
                    namespace = store_of_pages._namespace.namespace_id
                    assert namespace, "the store was not reached"
                    assert namespace not in owners, f"{name} shares with {owners.get(namespace)}"
                    owners[namespace] = name
    assert len(owners) == len(VARIANTS)
