"""Interface v2 method by method: a side pool's page that is gone, damaged or asked for wrongly is a miss of what
depends on it, and nothing is ever raised.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang_harness.case import Case
from sglang_harness.engine import Engine
from sglang_harness.pool_pages import fill_pages, page_bytes
from sglang_harness.prompts import WrittenPrompt, write_prompt

from kvstore_client import Client
from kvstore_client.keys import POOL_KV, POOL_SIDE
from kvstore_client.protocol import KEYS_MAX
from support.processes import Cluster
from support.running_cluster import paused, running_cluster
from support.tcp_proxy import TO_CLIENT, TcpProxy
from support.waiting import wait_until

PAGES, PAGE_SIZE, WINDOW = 8, 16, 3
GRACE_S = 0.5  # on top of a deadline, on a busy two-core machine
ROUND_PARTS = 88  # of 64 KiB, in a store of 8 MiB
NOWHERE = "127.0.0.1:1"
SIDE_POOLS = {"swa": {"window": WINDOW, "layers": 2, "heads": 2, "head_dim": 8}, "mamba": {"layers": 2}}


def hybrid_case(masters: str, **options: Any) -> Case:
    options = {"masters": masters, "deadline_ms": 5000, "tag": os.urandom(4).hex()} | options
    return Case(
        pages=PAGES, checkpoints=[4, PAGES], model_name="acme/hybrid", side_pools=SIDE_POOLS, options=options
    )


@pytest.fixture
def engine(store: Cluster) -> Iterator[Engine]:
    """A hybrid engine on the session's store, with namespaces of its own."""
    with Engine(hybrid_case(store.masters)) as opened:
        yield opened


@pytest.fixture
def written(engine: Engine) -> WrittenPrompt:
    """A prompt in the store: windows and states behind pages 4 and 8."""
    prompt = write_prompt(engine)
    assert prompt.stored_tokens == PAGES * PAGE_SIZE
    return prompt


def swa(keys: list[str], slots: Any = None, policy: Any = PoolHitPolicy.TRAILING_PAGES) -> PoolTransfer:
    return PoolTransfer(PoolName.SWA, host_indices=slots, keys=keys, hit_policy=policy)


def mamba(keys: list[str], slots: Any = None) -> PoolTransfer:
    return PoolTransfer(
        PoolName.MAMBA, host_indices=slots, keys=keys, hit_policy=PoolHitPolicy.TRAILING_PAGES
    )


def ask(engine: Engine, hashes: list[str]) -> Any:
    return engine.backend.batch_exists_v2(hashes, [swa(["?"] * WINDOW), mamba(["?"])], None)


def remove(engine: Engine, name: str, hashes: list[str]) -> None:
    """As if the segment had evicted these pages of the side pool."""
    store = engine.backend._side_pools._pools[name].stores.of("")
    with Client(engine.case.options["masters"]) as client:
        pages = client.namespace(store.identity).pages(POOL_SIDE, store.shards)
        assert pages.batch_remove(hashes) == [True] * len(hashes)


def test_a_query_tells_each_pools_own_reach_and_every_prefix_that_all_of_them_allow(
    engine: Engine, written: WrittenPrompt
) -> None:
    found = ask(engine, [*written.hashes, "0" * 64])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (PAGES, [4, PAGES])
    assert found.extra_pool_hit_pages == {"kv": PAGES, "swa": PAGES, "mamba": PAGES}
    alone = engine.backend.batch_exists_v2(written.hashes, [], None)
    assert alone.restorable_prefix_pages == list(range(1, PAGES + 1))
    for strange in (PoolHitPolicy.BLOCK_GROUPS, "some_day"):
        assert (
            engine.backend.batch_exists_v2(written.hashes, [swa(["?"], None, strange)], None).kv_hit_pages
            == 0
        )
    unknown = PoolTransfer("unheard_of", keys=["?"])
    assert engine.backend.batch_exists_v2(written.hashes, [unknown], None).kv_hit_pages == 0


def test_without_one_page_of_the_last_window_the_prompt_is_restored_to_the_checkpoint_before(
    engine: Engine, written: WrittenPrompt
) -> None:
    remove(engine, "swa", [written.hashes[6]])
    found = ask(engine, written.hashes)
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (4, [4])
    assert found.extra_pool_hit_pages == {"kv": PAGES, "swa": 4, "mamba": PAGES}
    engine.wipe()
    got = engine.prefetch(engine.case.tokens)
    assert got.hit_tokens == got.completed_tokens == 4 * PAGE_SIZE
    assert page_bytes(engine.side_host_pools["swa"], got.side_indices["swa"]) == written.side_pages["swa"][4]


def test_without_the_last_state_and_the_first_window_nothing_is_restored(
    engine: Engine, written: WrittenPrompt
) -> None:
    remove(engine, "mamba", [written.hashes[7]])
    remove(engine, "swa", [written.hashes[3]])
    found = ask(engine, written.hashes)
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (0, [])
    assert engine.prefetch(engine.case.tokens).hit_tokens == 0


def test_when_nothing_is_left_to_restore_no_further_pool_is_asked(
    engine: Engine, written: WrittenPrompt
) -> None:
    remove(engine, "swa", [written.hashes[3], written.hashes[7]])
    before = engine.backend.counters()["exists_calls"]
    found = ask(engine, written.hashes)
    assert (found.kv_hit_pages, found.extra_pool_hit_pages) == (0, {"kv": PAGES})  # of states: no verdict
    assert engine.backend.counters()["exists_calls"] - before == 2


def test_a_page_that_goes_between_query_and_get_is_one_miss_and_is_counted(
    engine: Engine, written: WrittenPrompt
) -> None:
    assert ask(engine, written.hashes).kv_hit_pages == PAGES
    remove(engine, "swa", [written.hashes[6]])
    pool = engine.side_host_pools["swa"]
    slots = pool.alloc(WINDOW * PAGE_SIZE)
    before = engine.backend.counters()
    answers = engine.backend.batch_get_v2([swa(written.hashes[5:], slots)])
    assert answers == {"swa": [True, False, True]}
    after = engine.backend.counters()
    assert after["swa_pages_loaded"] - before["swa_pages_loaded"] == 2
    assert after["swa_pages_missed"] - before["swa_pages_missed"] == 1
    loaded = page_bytes(pool, slots)
    assert [loaded[0], loaded[2]] == [written.side_pages["swa"][PAGES][at] for at in (0, 2)]


def test_a_damaged_side_page_is_a_miss_is_counted_and_is_never_loaded(tmp_path: Path) -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(closing(TcpProxy()))
        store = stack.enter_context(running_cluster(tmp_path, advertise_port=proxy.port))
        proxy.target_port = store.segments["segment"].wait_event("listening")["port"]
        engine = stack.enter_context(Engine(hybrid_case(store.masters, same_host=False)))
        written = write_prompt(engine)
        pool = engine.side_host_pools["swa"]
        slots = pool.alloc(WINDOW * PAGE_SIZE)
        proxy.flip(TO_CLIENT, 3000)  # inside of the second of three pages of 2 KiB
        answers = engine.backend.batch_get_v2([swa(written.hashes[5:], slots)])["swa"]
        assert proxy.flips_done == 1
        assert not all(answers), "a damaged page was answered as found"
        counters = engine.backend.counters()
        assert counters["digest_mismatches"] > 0
        assert counters["swa_pages_missed"] == answers.count(False)
        expected, loaded = written.side_pages["swa"][PAGES], page_bytes(pool, slots)
        for page, answer in enumerate(answers):
            assert not answer or loaded[page] == expected[page], f"page {page} was answered with other bytes"
        wait_until(
            lambda: engine.backend.batch_get_v2([swa(written.hashes[5:], slots)]) == {"swa": [True] * WINDOW},
            "healthy pages are readable again",
        )
        assert page_bytes(pool, slots) == expected


def test_one_call_answers_for_every_transfer_and_one_that_is_wrong_does_not_spoil_the_others(
    engine: Engine, written: WrittenPrompt
) -> None:
    backend = engine.backend
    states = engine.side_host_pools["mamba"].alloc(1)
    window = engine.side_host_pools["swa"].alloc(WINDOW * PAGE_SIZE)
    good = mamba(written.hashes[7:], states)
    wrong = {
        "no indices": swa(written.hashes[5:]),
        "too few indices": swa(written.hashes[5:], window[:-1]),
        "unaligned indices": swa(written.hashes[5:], window + 1),
        "indices outside": swa(written.hashes[5:], window + engine.side_host_pools["swa"].size),
        "strange keys": swa(["", "x", "é"], window),
        "keys of other types": swa([None, 7, b"k"], window),
    }
    for name, transfer in wrong.items():
        for call in (backend.batch_get_v2, backend.batch_set_v2):
            if name == "strange keys" and call == backend.batch_set_v2:
                continue  # any text can be a key
            answers = call([transfer, good], extra_info=None)
            assert answers == {"swa": [False] * WINDOW, "mamba": [True]}, name
            assert all(type(truth) is bool for truths in answers.values() for truth in truths)
    unregistered = PoolTransfer("indexer", host_indices=window, keys=written.hashes[5:])
    assert backend.batch_get_v2([unregistered, good]) == {"indexer": [False] * WINDOW, "mamba": [True]}
    assert backend.batch_get_v2([swa([], window[:0]), good]) == {"swa": [], "mamba": [True]}
    assert backend.batch_get_v2([]) == backend.batch_set_v2([]) == {}


def test_pages_of_one_pool_are_never_answered_to_another_pool_of_the_same_form(store: Cluster) -> None:
    form = {"layers": 2, "heads": 2, "head_dim": 8, "dtype": "bfloat16"}
    case = replace(
        hybrid_case(store.masters),
        layers=2,
        heads=2,
        head_dim=8,
        side_pools={"swa": form, "draft": form},
        draft_model="acme/draft",
    )
    with Engine(case) as engine:
        hashes = write_prompt(engine).hashes
        backend, slots = engine.backend, engine.side_host_pools["swa"].alloc(PAGES * PAGE_SIZE)
        fill_pages(engine.side_host_pools["swa"], slots, seed=9)
        # The window's last page alone is stored under the checkpoints; KV and draft have all pages.
        assert backend.batch_get_v2([swa(hashes, slots)])["swa"] == [page in (3, 7) for page in range(PAGES)]
        assert backend.batch_exists(hashes, None) == PAGES


def test_clear_hides_the_side_pools_too(engine: Engine, written: WrittenPrompt) -> None:
    engine.backend.clear()
    window = engine.side_host_pools["swa"].alloc(WINDOW * PAGE_SIZE)
    state = engine.side_host_pools["mamba"].alloc(1)
    transfers = [swa(written.hashes[5:], window), mamba(written.hashes[7:], state)]
    assert engine.backend.batch_get_v2(transfers) == {"swa": [False] * WINDOW, "mamba": [False]}
    assert engine.backend.batch_set_v2(transfers) == {"swa": [True] * WINDOW, "mamba": [True]}


@pytest.mark.alone
def test_a_call_for_several_pools_of_a_hung_store_takes_one_deadline(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as store, Engine(hybrid_case(store.masters, deadline_ms=800)) as engine:
        # Nothing is written yet, and with the master paused no namespace can be opened: every pool would wait.
        hashes = [f"{number:064x}" for number in range(PAGES)]
        window = engine.side_host_pools["swa"].alloc(WINDOW * PAGE_SIZE)
        state = engine.side_host_pools["mamba"].alloc(1)
        transfers = [swa(hashes[5:], window), mamba(hashes[7:], state)]
        backend = engine.backend
        with paused(store.segments["segment"], store.master):
            for call in (
                lambda: ask(engine, hashes),
                lambda: backend.batch_get_v2(transfers),
                lambda: backend.batch_set_v2(transfers),
            ):
                started = time.monotonic()
                call()
                assert time.monotonic() - started < 0.8 + GRACE_S
        wait_until(
            lambda: backend.batch_set_v2(transfers) == {"swa": [True] * WINDOW, "mamba": [True]},
            "the store serves again",
        )


def test_an_absent_store_answers_as_an_empty_one() -> None:
    with Engine(hybrid_case(NOWHERE, deadline_ms=300)) as engine:
        slots = engine.host_pool.alloc(PAGES * PAGE_SIZE)
        assert engine.backup(slots, engine.case.tokens)[1] == 0
        got = engine.prefetch(engine.case.tokens)
        assert (got.hit_tokens, got.restorable) == (0, [])


REFUSED: dict[str, dict[str, Any]] = {
    "a draft pool of an unnamed draft model": {"side_pools": {"draft": {"layers": 1}}},
    "a draft of heads that one rank of two would write": {
        "side_pools": {"draft": {"layers": 1}},
        "draft_model": "acme/draft",
        "kind": "mla",
        "tp_size": 2,
    },
    "index keys that lie where SGLang gives no addresses": {
        "side_pools": {"indexer": {}},
        "model": "dsa",
        "layout": "layer_first",
        "page_size": 64,
    },
    "windows of heads that tp_lcm_size can't split": {
        "side_pools": {"swa": {"heads": 1}},
        "layout": "page_head",
        "tp_size": 1,
        "tp_lcm_size": 4,
    },
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_can_not_be_identified_turns_the_backend_off_with_one_clear_error(
    store: Cluster, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    case = replace(hybrid_case(store.masters), **REFUSED[what])
    (name,) = case.side_pools
    with caplog.at_level(logging.ERROR, "hicache_adapter"), Engine(case) as engine:
        assert write_prompt(engine).stored_tokens == 0
        assert engine.prefetch(case.tokens).hit_tokens == 0
    errors = [record.getMessage() for record in caplog.records if record.name == "hicache_adapter"]
    assert len(errors) == 1
    assert f"side pool '{name}'" in errors[0] and "nothing is stored or loaded" in errors[0]


def test_a_pool_of_a_name_that_nobody_knows_turns_the_backend_off(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "hicache_adapter"):
        engine.backend.register_mem_host_pool_v2(engine.side_host_pools["swa"], "some_day")
        engine.backend.register_mem_host_pool_v2(engine.side_host_pools["swa"], "another_day")
    (record,) = caplog.records
    assert (
        "side pool 'some_day'" in record.getMessage() and "of that name is not stored" in record.getMessage()
    )
    assert engine.backend.batch_exists(["0" * 64], None) == 0


def test_a_cache_that_lies_in_side_pools_alone_is_there_only_as_far_as_they_are(store: Cluster) -> None:
    case = Case(
        model="deepseek_v4",
        page_size=256,
        pages=4,
        side_pools={"swa": {"window": 1}},
        options={"masters": store.masters, "deadline_ms": 5000, "tag": os.urandom(4).hex()},
    )
    with Engine(case) as engine:
        backend = engine.backend
        keys, slots = [f"{number:064x}" for number in range(2)], engine.host_pool.alloc(512)
        assert (
            backend.batch_set_v1(keys, slots, None) == backend.batch_get_v1(keys, slots, None) == [True] * 2
        )
        assert backend.batch_set(keys, [torch.empty(0)] * 2) is True
        assert [flat.numel() for flat in backend.batch_get(keys, [torch.empty(0)] * 2)] == [0, 0]
        assert backend.batch_exists(keys, None) == 0  # nothing says that the side pools have them
        c4 = PoolTransfer("deepseek_v4_c4", host_indices=slots, keys=keys)
        assert backend.batch_exists_v2(keys, [c4], None).kv_hit_pages == 0
        assert backend.batch_exists_v2(keys, [], None).kv_hit_pages == 0
        assert backend.batch_set_v2([c4]) == {"deepseek_v4_c4": [True] * 2}
        assert backend.batch_exists_v2(keys, [c4], None).restorable_prefix_pages == [1, 2]
        written = write_prompt(engine)
        assert engine.prefetch(case.tokens).completed_tokens == 4 * 256
        backend.clear()
        assert backend.batch_exists_v2(keys, [c4], None).kv_hit_pages == 0
        assert engine.prefetch(case.tokens).hit_tokens == 0 and written.stored_tokens == 4 * 256


@pytest.mark.long
def test_a_node_of_more_pages_than_a_request_takes_is_stored_and_loaded_whole(tmp_path: Path) -> None:
    pages = KEYS_MAX + 1000
    draft = {"layers": 1, "heads": 1, "head_dim": 8, "dtype": "bfloat16"}
    with running_cluster(tmp_path, capacity="512MiB") as store:
        case = replace(
            hybrid_case(store.masters),
            pages=pages,
            page_size=1,
            layers=1,
            heads=1,
            head_dim=8,
            side_pools={"draft": draft},
            draft_model="acme/draft",
        )
        with Engine(case) as engine:
            pool, slots = engine.side_host_pools["draft"], torch.arange(pages)
            pool.kv_buffer.view(torch.int16).random_(generator=torch.Generator().manual_seed(7))
            keys = [f"{number:064x}" for number in range(pages)]
            node = PoolTransfer(PoolName.DRAFT, host_indices=slots, keys=keys)
            before = pool.kv_buffer.view(torch.int16).clone()
            assert engine.backend.batch_set_v2([node]) == {"draft": [True] * pages}
            engine.wipe()
            assert engine.backend.batch_get_v2([node]) == {"draft": [True] * pages}
            assert torch.equal(pool.kv_buffer.view(torch.int16)[:, :pages], before[:, :pages])


def test_when_pages_are_evicted_between_query_and_load_all_pools_end_at_the_same_page(tmp_path: Path) -> None:
    side_pools = {"draft": {"layers": 4, "heads": 4, "head_dim": 64}}
    with running_cluster(tmp_path, capacity="8MiB") as store:
        case = replace(
            hybrid_case(store.masters, pin_ms=1),
            pages=24,
            checkpoints=[24],
            heads=4,
            head_dim=64,
            side_pools=side_pools,
            draft_model="acme/draft",
        )
        with Engine(case) as engine, Client(store.masters) as client:
            written = write_prompt(engine)
            assert written.stored_tokens == 24 * PAGE_SIZE
            backend = engine.backend
            of_pool = {
                "kv": (backend._store(flat_pages=False), POOL_KV),
                "draft": (backend._side_pools._pools["draft"].stores.of(""), POOL_SIDE),
            }
            pages = {
                name: client.namespace(pool_store.identity).pages(pool, pool_store.shards)
                for name, (pool_store, pool) in of_pool.items()
            }
            runs: dict[str, int] = {}

            def fill_the_store() -> None:
                others = client.namespace("others")
                for number in range(20):
                    # As much as fits beside the prompt, and a little more: what was used least recently goes. Asking
                    # is a use, so it is done once a round.
                    assert all(
                        others.put(f"other {number} {part}", bytes(64 << 10)) for part in range(ROUND_PARTS)
                    )
                    for name, kept in pages.items():
                        runs[name] = [*kept.batch_exists(written.hashes, pin_ms=0), False].index(False)
                    if min(runs.values()) < 24:
                        return
                raise AssertionError("nothing is evicted")

            kv_pages = engine.page_bytes(written.slots)
            engine.wipe()
            got = engine.prefetch(case.tokens, before_load=fill_the_store)
            usable = min(runs.values())
            assert got.hit_tokens == 24 * PAGE_SIZE and 0 < usable < 24, runs
            assert got.completed_tokens == usable * PAGE_SIZE, runs
            loaded = got.host_indices[: got.completed_tokens]
            assert engine.page_bytes(loaded) == kv_pages[:usable]
            draft = page_bytes(engine.side_host_pools["draft"], loaded)
            assert draft == written.side_pages["draft"][24][:usable]


def test_states_that_sglang_does_not_hand_out_whole_turn_the_backend_off(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    pool = engine.side_host_pools["mamba"]
    pool.slot_state_device_tensors = [torch.zeros(1)]
    with caplog.at_level(logging.ERROR, "hicache_adapter"):
        engine.backend.register_mem_host_pool_v2(pool, PoolName.MAMBA)
    assert "beside its slots" in caplog.text
    assert engine.backend.batch_exists(["0" * 64], None) == 0


def test_pools_of_states_of_older_versions_are_stored_as_well(engine: Engine, written: WrittenPrompt) -> None:
    pool = engine.side_host_pools["mamba"]
    pool.device_pool = SimpleNamespace(mamba_cache=pool.buffer_info)
    del pool.kv_buffer, pool.buffer_info  # neither is there before 0.5.22
    engine.backend.register_mem_host_pool_v2(pool, PoolName.MAMBA)
    state = pool.alloc(1)
    assert engine.backend.batch_get_v2([mamba(written.hashes[7:], state)]) == {"mamba": [True]}
    assert page_bytes(pool, state) == written.side_pages["mamba"][PAGES]


def test_a_side_pool_of_another_form_than_expected_turns_the_backend_off_and_raises_nothing(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    class MambaPoolHost(SimpleNamespace):
        """Of a later SGLang, without anything that this release looks for."""

    with caplog.at_level(logging.ERROR, "hicache_adapter"):
        engine.backend.register_mem_host_pool_v2(MambaPoolHost(layout="page_first"), "mamba")
    assert "side pool 'mamba'" in caplog.text
    assert engine.backend.batch_set_v2([mamba(["0" * 64], torch.arange(1))]) == {"mamba": [False]}
