"""Hybrid models: what lies beside the KV pages comes back with them, byte-equal in another process, or the prefix is
not a hit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sglang_harness.case import Case
from sglang_harness.worker_process import WorkerProcess

from support.processes import Cluster

Workers = tuple[WorkerProcess, WorkerProcess]

PAGES = 12
SWA = {"window": 3, "layers": 2, "heads": 2, "head_dim": 8}
STATES = {"layers": 2, "heads": 4}
DRAFT = {"layers": 1, "heads": 2, "head_dim": 8}
DRAFT_MODEL = "acme/draft"


def case_for(store: Cluster, name: str, side_pools: dict[str, Any], **fields: Any) -> Case:
    fields = {"pages": PAGES, "options": {"masters": store.masters, "deadline_ms": 5000}} | fields
    return Case(model_name=f"acme/{name}", side_pools=side_pools, **fields)


def write(workers: Workers, case: Case) -> dict[str, Any]:
    written = workers[0].write(case)
    assert written["stored_tokens"] == case.pages * case.page_size, workers[0].log_tail()
    return written


def check_loaded(workers: Workers, case: Case, written: dict[str, Any], pages: int) -> dict[str, Any]:
    """The reader gets exactly the first `pages` pages, and of every side pool what belongs to them."""
    loaded = workers[1].read(case)
    assert loaded["hit_tokens"] == pages * case.page_size, workers[1].log_tail()
    assert loaded["loaded_tokens"] == pages * case.page_size, workers[1].log_tail()
    assert loaded["digests"] == written["digests"][:pages]
    for name in case.side_pools:
        expected = written["side_digests"][name][str(pages)]
        assert loaded["side_digests"][name] == expected, name
        if not case.follows_kv(name):
            assert loaded["side_pages"][name] == len(expected), name
    return loaded


def check_nothing(workers: Workers, case: Case) -> None:
    loaded = workers[1].read(case)
    assert loaded["hit_tokens"] == loaded["loaded_tokens"] == 0
    assert loaded["restorable"] == []


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct", "page_head"])
def test_windows_come_back_byte_equal_in_another_process(
    workers: Workers, store: Cluster, layout: str
) -> None:
    case = case_for(store, f"swa-{layout}", {"swa": SWA}, layout=layout)
    written = write(workers, case)
    loaded = check_loaded(workers, case, written, PAGES)
    assert loaded["restorable"] == [PAGES]  # the window is there at the end only
    counters = loaded["counters"]
    assert (counters["kv_pages_loaded"], counters["swa_pages_loaded"], counters["swa_pages_missed"]) == (
        PAGES,
        3,
        0,
    )
    assert (
        counters["swa_bytes_loaded"] == 3 * 16 * 2 * 2 * 2 * 8 * 2
    )  # pages, tokens, K and V, layers, heads, width


@pytest.mark.parametrize("layout", ["page_first", "page_first_direct"])
def test_states_come_back_byte_equal_in_another_process(
    workers: Workers, store: Cluster, layout: str
) -> None:
    case = case_for(store, f"states-{layout}", {"mamba": STATES}, layout=layout)
    written = write(workers, case)
    assert check_loaded(workers, case, written, PAGES)["restorable"] == [PAGES]


def test_a_model_with_pages_of_one_token_and_with_every_kind_of_side_pool_comes_back_whole(
    workers: Workers, store: Cluster
) -> None:
    case = case_for(
        store,
        "everything",
        {"swa": SWA, "mamba": STATES, "draft": DRAFT},
        draft_model=DRAFT_MODEL,
        page_size=1,
        pages=300,  # three batches of SGLang's
        checkpoints=[100, 200, 300],
    )
    written = write(workers, case)
    assert check_loaded(workers, case, written, 300)["restorable"] == [100, 200, 300]


def test_side_pools_in_shared_memory_round_trip_over_the_same_host_transport(
    workers: Workers, store: Cluster
) -> None:
    options = {"masters": store.masters, "deadline_ms": 5000, "tcp": False}
    case = case_for(store, "shm", {"swa": SWA, "mamba": STATES}, allocator="shm", options=options)
    check_loaded(workers, case, write(workers, case), PAGES)


def test_a_prompt_is_restored_up_to_the_last_checkpoint_that_it_shares(
    workers: Workers, store: Cluster
) -> None:
    case = case_for(store, "checkpoints", {"swa": SWA, "mamba": STATES}, checkpoints=[2, 5, 9, PAGES])
    written = write(workers, case)
    # Every KV page of 11 is stored; windows and states lie at 2, 5 and 9.
    loaded = check_loaded(workers, replace(case, pages=11), written, 9)
    assert loaded["restorable"] == [2, 5, 9]


def test_a_model_without_any_checkpoint_inside_a_prompt_gets_nothing_of_it(
    workers: Workers, store: Cluster
) -> None:
    case = case_for(store, "no-checkpoint", {"mamba": STATES})
    write(workers, case)
    check_nothing(workers, replace(case, pages=PAGES - 1))


def test_pages_that_follow_kv_cut_the_hit_where_the_first_one_is_missing(
    workers: Workers, store: Cluster
) -> None:
    case = case_for(store, "draft-tail", {"draft": DRAFT}, draft_model=DRAFT_MODEL)
    alone = replace(case, side_pools={}, draft_model="")
    head = replace(case, pages=5)
    write(workers, head)
    write(workers, replace(alone, seed=head.seed))  # the tail: KV pages without the draft's
    loaded = workers[1].read(case)
    assert loaded["hit_tokens"] == loaded["loaded_tokens"] == 5 * 16, workers[1].log_tail()


OTHERS: dict[str, dict[str, Any]] = {
    "window heads": {"swa": SWA | {"heads": 4}},
    "window width": {"swa": SWA | {"head_dim": 16}},
    "window layers": {"swa": SWA | {"layers": 3}},
    "window dtype": {"swa": SWA | {"dtype": "float16"}},
    "state layers": {"mamba": STATES | {"layers": 3}},
    "state heads": {"mamba": STATES | {"heads": 2, "head_dim": 32}},  # the same number of bytes
    "state width": {"mamba": STATES | {"state_size": 16}},
    "state dtype": {"mamba": STATES | {"state_dtype": "bfloat16"}},
}


@pytest.mark.parametrize("what", OTHERS)
def test_side_pages_of_another_geometry_are_misses_for_each_other(
    workers: Workers, store: Cluster, what: str
) -> None:
    side_pools = {"swa": SWA, "mamba": STATES}
    case = case_for(store, f"geometry-{what}", side_pools)
    write(workers, case)
    check_nothing(workers, replace(case, side_pools=side_pools | OTHERS[what]))
    check_loaded(workers, case, write(workers, case), PAGES)


def test_pages_of_another_draft_model_are_misses(workers: Workers, store: Cluster) -> None:
    case = case_for(store, "two-drafts", {"draft": DRAFT}, draft_model=DRAFT_MODEL)
    write(workers, case)
    check_nothing(workers, replace(case, draft_model="acme/other-draft"))


def test_tp_ranks_of_a_replicated_kv_cache_store_their_own_states(workers: Workers, store: Cluster) -> None:
    ranks = [
        case_for(store, "mla-states", {"mamba": STATES}, kind="mla", tp_rank=rank, tp_size=2, seed=50 + rank)
        for rank in range(2)
    ]
    first = write(workers, ranks[0])
    check_nothing(workers, ranks[1])  # rank 1 finds the shared KV pages and not rank 0's states
    second = workers[0].write(ranks[1])
    assert first["side_digests"] != second["side_digests"]
    for case, written in zip(ranks, (first, second), strict=True):
        loaded = workers[1].read(case)
        assert loaded["digests"] == first["digests"]
        assert loaded["side_digests"]["mamba"] == written["side_digests"]["mamba"][str(PAGES)]


def test_averaged_index_keys_of_a_recurrent_model_come_back_with_its_states(
    workers: Workers, store: Cluster
) -> None:
    pools = {"mamba": STATES, "indexer": {"layers": 3}}
    case = case_for(store, "averaged-keys", pools)
    written = write(workers, case)
    check_nothing(workers, replace(case, side_pools=pools | {"indexer": {"layers": 3, "ratio": 8}}))
    check_loaded(workers, case, written, PAGES)


def test_pipeline_stages_of_a_hybrid_model_never_share_and_the_same_stage_does(
    workers: Workers, store: Cluster
) -> None:
    # The pools of both stages have the same form and number their layers from 0 on.
    stages = [
        case_for(store, "stages", {"swa": SWA, "mamba": STATES}, pp_rank=stage, pp_size=2, seed=20 + stage)
        for stage in range(2)
    ]
    first = write(workers, stages[0])
    check_nothing(workers, stages[1])
    second = write(workers, stages[1])
    assert not set(first["digests"]) & set(second["digests"])
    for case, written in zip(stages, (first, second), strict=True):
        check_loaded(workers, case, written, PAGES)
    check_nothing(workers, replace(stages[1], pp_size=3))  # other layers than the second of two stages


def test_ranks_that_hold_the_same_head_get_what_their_own_number_stored(
    workers: Workers, store: Cluster
) -> None:
    # A model of two KV heads on four TP ranks: each rank has one head, and ranks 0 and 1 the same one.
    heads = {"kind": "mha", "heads": 1, "side_pools": {"swa": SWA | {"heads": 1}}}
    ranks = [
        case_for(store, "replicated", tp_rank=rank, tp_size=4, seed=30 + rank, **heads) for rank in range(4)
    ]
    written = [write(workers, case) for case in ranks]
    for case, one in zip(ranks, written, strict=True):
        check_loaded(workers, case, one, PAGES)
    # Two ranks with one of the two heads each are another cut: never taken for it.
    check_nothing(workers, replace(ranks[0], tp_size=2))


def test_a_draft_of_heads_beside_a_latent_cache_comes_back_on_one_rank(
    workers: Workers, store: Cluster
) -> None:
    case = case_for(store, "latent-draft", {"draft": DRAFT}, kind="mla", draft_model=DRAFT_MODEL)
    check_loaded(workers, case, write(workers, case), PAGES)
