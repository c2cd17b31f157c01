"""Models that keep more than keys and values of heads: sparse attention's indexers, DeepSeek V4, MiniMax M3. SGLang's own
assembler builds their pools; what one process stores comes back byte-equal in another one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sglang_harness.case import Case
from sglang_harness.engine import Engine
from sglang_harness.worker_process import WorkerProcess

from support.processes import Cluster

Workers = tuple[WorkerProcess, WorkerProcess]

PAGES = 5
PAGE_SIZES = {"dsa": 64, "deepseek_v4": 256, "minimax": 64, "minimax_nvfp4": 128}
DRAFT = {"draft_model": "acme/draft"}
WINDOW = {"side_pools": {"swa": {"window": 2}}}
LOW_RATIOS = {"ratios": [1, 2, 4, 0]}
TWO_ALIKE = [0, 4, 0, 4]  # two pipeline stages whose pools have the same form


def case_of(store: Cluster, model: str, name: str, **fields: Any) -> Case:
    options = {"masters": store.masters, "deadline_ms": 5000}
    if model == "deepseek_v4":
        fields = WINDOW | fields
    common = {"page_size": PAGE_SIZES[model], "pages": PAGES, "heads": 2, "options": options}
    return Case(model=model, model_name=f"acme/{model} {name}", **(common | fields))


def write(workers: Workers, case: Case) -> dict[str, Any]:
    written = workers[0].write(case)
    assert written["stored_tokens"] == case.pages * case.page_size, workers[0].log_tail()
    return written


def check_loaded(workers: Workers, case: Case, written: dict[str, Any], pages: int = PAGES) -> dict[str, Any]:
    """The reader gets exactly the first `pages` pages, and of every side pool what belongs to them."""
    loaded = workers[1].read(case)
    assert loaded["hit_tokens"] == loaded["loaded_tokens"] == pages * case.page_size, workers[1].log_tail()
    assert loaded["digests"] == written["digests"][:pages]
    assert set(loaded["side_digests"]) == set(written["side_digests"])
    for name, digests in loaded["side_digests"].items():
        assert digests and digests == written["side_digests"][name][str(pages)], name
        assert loaded["counters"][f"{name}_pages_loaded"] == len(digests)
    return loaded


def check_nothing(workers: Workers, case: Case) -> None:
    loaded = workers[1].read(case)
    assert loaded["hit_tokens"] == loaded["loaded_tokens"] == 0, workers[1].log_tail()
    assert loaded["restorable"] == []


COME_BACK: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "index keys": ("dsa", {}, {"indexer"}),
    "index keys of some layers": ("dsa", {"model_fields": {"skip": [1, 2]}}, {"indexer"}),
    "index keys with those of a packed draft": ("dsa", {"model_fields": {"drafts": 1}, **DRAFT}, {"indexer"}),
    "index keys of a draft model of its own": (
        "dsa",
        {"model_fields": {"own_draft": True}, **DRAFT},
        {"indexer", "draft", "draft_indexer"},
    ),
    "DeepSeek V4": (
        "deepseek_v4",
        {},
        {"swa"}
        | {f"deepseek_v4_{name}" for name in ("c4", "c4_indexer", "c128")}
        | {"deepseek_v4_c4_state", "deepseek_v4_c4_indexer_state"},
    ),
    "DeepSeek V4 with low ratios, ropes apart and a draft model of its own": (
        "deepseek_v4",
        {"model_fields": {**LOW_RATIOS, "ropes": True, "own_draft": True}, **DRAFT},
        {"swa", "draft_swa"}
        | {f"deepseek_v4_{name}" for name in ("c1", "c1_indexer", "c2", "c2_indexer", "c4", "c4_indexer")}
        | {"deepseek_v4_c4_rope", "deepseek_v4_c4_state", "deepseek_v4_c4_indexer_state"},
    ),
    "MiniMax": ("minimax", {}, {"indexer"}),
    "MiniMax in NVFP4": ("minimax_nvfp4", {}, {"indexer"}),
}


@pytest.mark.parametrize("what", COME_BACK)
def test_every_pool_comes_back_byte_equal_in_another_process(
    workers: Workers, store: Cluster, what: str
) -> None:
    model, fields, pools = COME_BACK[what]
    case = case_of(store, model, what, **fields)
    written = write(workers, case)
    assert set(written["side_digests"]) == pools
    check_loaded(workers, case, written)


PLACES: dict[str, tuple[str, dict[str, Any]]] = {
    "index keys page_first_direct": ("dsa", {"layout": "page_first_direct"}),
    "index keys shm": ("dsa", {"allocator": "shm"}),
    "DeepSeek V4 layer_first": ("deepseek_v4", {"layout": "layer_first"}),
    "DeepSeek V4 page_first_direct": ("deepseek_v4", {"layout": "page_first_direct"}),
    "DeepSeek V4 shm": ("deepseek_v4", {"allocator": "shm", "layout": "layer_first"}),
    "DeepSeek V4 flat": ("deepseek_v4", {"interface_v1": 0}),
    "MiniMax page_first_direct": ("minimax", {"layout": "page_first_direct"}),
    "MiniMax in NVFP4 page_first_direct": ("minimax_nvfp4", {"layout": "page_first_direct"}),
    "MiniMax in NVFP4 flat": ("minimax_nvfp4", {"interface_v1": 0}),
}


@pytest.mark.parametrize("where", PLACES)
def test_wherever_pages_lie_and_however_they_are_handed_over_they_come_back(
    workers: Workers, store: Cluster, where: str
) -> None:
    model, fields = PLACES[where]
    case = case_of(store, model, where, **fields)
    check_loaded(workers, case, write(workers, case))


OTHERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "other layers have index keys": (
        "dsa",
        {"model_fields": {"skip": [1]}},
        {"model_fields": {"skip": [2]}},
    ),
    "the draft is another one": (
        "dsa",
        {"model_fields": {"drafts": 1}, **DRAFT},
        {"model_fields": {"drafts": 1}, "draft_model": "acme/other"},
    ),
    "a draft's layer is behind": ("dsa", {}, {"model_fields": {"drafts": 1}, **DRAFT}),
    "layers compress otherwise": ("deepseek_v4", {}, {"model_fields": {"ratios": [0, 4, 128, 128]}}),
    "the layout is another": ("deepseek_v4", {}, {"layout": "page_first_direct"}),
    "a rank has more heads": ("minimax_nvfp4", {}, {"heads": 4}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_pages_of_another_form_are_misses(workers: Workers, store: Cluster, what: str) -> None:
    model, fields, changes = OTHERS[what]
    case = case_of(store, model, what, **fields)
    write(workers, case)
    check_nothing(workers, replace(case, **changes))
    check_loaded(workers, case, write(workers, case))


def test_a_prompt_of_deepseek_v4_is_restored_up_to_the_last_window_that_it_shares(
    workers: Workers, store: Cluster
) -> None:
    case = case_of(store, "deepseek_v4", "checkpoints", checkpoints=[2, PAGES])
    written = write(workers, case)
    # The windows of two pages end at 2 and 5. One page is all of a prompt of one.
    assert workers[1].read(replace(case, pages=PAGES + 1))["restorable"] == [1, 2, PAGES]
    loaded = check_loaded(workers, replace(case, pages=4), written, 2)
    assert loaded["restorable"] == [1, 2]


def test_every_tp_rank_loads_what_one_of_them_has_stored_of_a_replicated_cache(
    workers: Workers, store: Cluster
) -> None:
    for model in ("dsa", "deepseek_v4"):
        ranks = [case_of(store, model, "ranks", tp_rank=rank, tp_size=2) for rank in range(2)]
        written = write(workers, ranks[0])
        check_loaded(workers, ranks[1], written)
        check_loaded(workers, case_of(store, model, "ranks"), written)  # and a fleet of another TP size


def test_tp_ranks_share_index_keys_and_have_heads_of_their_own(workers: Workers, store: Cluster) -> None:
    for model in ("minimax", "minimax_nvfp4"):
        ranks = [case_of(store, model, "ranks", tp_rank=rank, tp_size=2, seed=60 + rank) for rank in range(2)]
        first = write(workers, ranks[0])
        check_nothing(workers, ranks[1])
        second = write(workers, ranks[1])
        assert not set(first["digests"]) & set(second["digests"])
        for case, written in zip(ranks, (first, second), strict=True):
            loaded = workers[1].read(case)
            assert loaded["digests"] == written["digests"]
            assert loaded["side_digests"]["indexer"] == first["side_digests"]["indexer"][str(PAGES)]


def test_ranks_that_split_the_layers_keep_the_index_keys_of_their_own(
    workers: Workers, store: Cluster
) -> None:
    ranks = [
        case_of(
            store,
            "dsa",
            "split",
            cp_rank=rank,
            cp_size=2,
            model_fields={"layers": 4, "split": 2},
            seed=70 + rank,
        )
        for rank in range(2)
    ]
    written = [write(workers, ranks[0])]
    check_nothing(workers, ranks[1])
    written.append(write(workers, ranks[1]))
    for case, one in zip(ranks, written, strict=True):
        check_loaded(workers, case, one)


STAGES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "DeepSeek V4": (
        "deepseek_v4",
        [
            {"model_fields": {"ratios": TWO_ALIKE, "first_layer": first, "end_layer": first + 2}}
            for first in (0, 2)
        ],
    ),
    "index keys": ("dsa", [{"model_fields": {"layers": 2, "first_layer": first}} for first in (0, 2)]),
    "index keys in a hybrid model": ("dsa", [{"model_fields": {"layers": 2}}] * 2),
}


@pytest.mark.parametrize("what", STAGES)
def test_a_pipeline_stage_loads_its_own_layers_and_never_another_stages(
    workers: Workers, store: Cluster, what: str
) -> None:
    model, stages = STAGES[what]
    cases = [
        case_of(store, model, f"stages {what}", pp_rank=stage, pp_size=2, seed=80 + stage, **fields)
        for stage, fields in enumerate(stages)
    ]
    first = write(workers, cases[0])
    check_nothing(workers, cases[1])
    second = write(workers, cases[1])
    check_loaded(workers, cases[0], first)
    check_loaded(workers, cases[1], second)


@pytest.mark.parametrize(
    ("model", "fields"),
    [*((model, {}) for model in PAGE_SIZES), ("deepseek_v4", {"model_fields": LOW_RATIOS})],
)
def test_where_pages_lie_is_known_of_every_pool_without_asking_it_in_each_call(
    model: str, fields: dict[str, Any]
) -> None:
    options = {"masters": "127.0.0.1:1"}
    fields = fields | (WINDOW if model == "deepseek_v4" else {})
    case = Case(model=model, page_size=PAGE_SIZES[model], pages=PAGES, heads=2, options=options, **fields)
    with Engine(case) as engine:
        pools = engine.backend._side_pools._pools
        assert pools
        asked = [name for name, pool in pools.items() if pool.plan.affine_plan is None]
    assert not asked
