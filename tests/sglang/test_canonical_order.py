"""Engines of different host layout, TP and PP size in the canonical byte order: each loads what any other has stored, bit
for bit, through SGLang's own host pools and controllers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import pytest
from sglang_harness.case import Case
from sglang_harness.worker_process import WorkerProcess

from support.processes import Cluster

Workers = tuple[WorkerProcess, WorkerProcess]

LAYOUTS = {
    "mha": ("layer_first", "page_first", "page_first_direct", "page_head"),
    "mla": ("layer_first", "page_first", "page_first_direct"),
}
TP_SIZES, PP_SIZES = (1, 2, 4), (1, 2)
LAYERS, HEADS, PAGES, PAGE_TOKENS = 4, 4, 2, 4


@dataclass(frozen=True)
class Engine:
    """How one engine of a fleet is run."""

    layout: str
    tp_size: int = 1
    pp_size: int = 1

    def ranks(self, model: Case) -> list[Case]:
        """Pipeline stage by pipeline stage, all the ranks of the engine."""
        layers = model.layers // self.pp_size
        return [
            replace(
                model,
                layout=self.layout,
                tp_rank=tp_rank,
                tp_size=self.tp_size,
                heads=model.heads // self.tp_size,
                pp_rank=pp_rank,
                pp_size=self.pp_size,
                first_layer=pp_rank * layers,
                layers=layers,
            )
            for pp_rank in range(self.pp_size)
            for tp_rank in range(self.tp_size)
        ]

    def __str__(self) -> str:
        return f"{self.layout} TP {self.tp_size} PP {self.pp_size}"


def all_engines(kind: str) -> list[Engine]:
    return [Engine(*how) for how in product(LAYOUTS[kind], TP_SIZES, PP_SIZES)]


def model_case(store: Cluster, name: str, **fields: Any) -> Case:
    """The model on one rank, in objects that engines of all those sizes share."""
    options = {"masters": store.masters, "byte_order": "canonical", "layers_per_object": LAYERS // 2}
    usual = {"layers": LAYERS, "heads": HEADS, "head_dim": 8, "page_size": PAGE_TOKENS, "pages": PAGES}
    options |= fields.pop("options", {})
    return Case(model_name=f"acme/{name}", options=options, **({"tp_lcm_size": HEADS} | usual | fields))


def whole_canonical_case(store: Cluster, name: str, **fields: Any) -> Case:
    """As model_case, but with one object a rank."""
    case = model_case(store, name, **({"tp_lcm_size": None} | fields))
    return replace(case, options=case.options | {"layers_per_object": 0})


def native_case(store: Cluster, name: str, **fields: Any) -> Case:
    """As whole_canonical_case, but without being told of byte orders."""
    case = whole_canonical_case(store, name, **fields)
    return replace(case, options={"masters": store.masters})


def prompt_of(number: int) -> list[int]:
    """Tokens and content of its own for each engine that writes."""
    return [1000 * (number + 1), 77 + number, PAGES]


def write_all(worker: WorkerProcess, model: Case, engines: list[Engine]) -> list[list[int]]:
    """Each engine stores a prompt of its own; the prompts."""
    prompts = [prompt_of(number) for number in range(len(engines))]
    for engine, prompt in zip(engines, prompts, strict=True):
        writers = engine.ranks(model)
        if model.kind == "mla":  # SGLang has one rank write what all of them hold
            writers = [rank for rank in writers if rank.tp_rank == 0]
        answer = worker.call("write_model", model, ranks=[*map(asdict, writers)], prompts=[prompt])
        assert answer["stored_tokens"] == [[PAGES * PAGE_TOKENS]] * len(writers), str(engine)
    return prompts


def faults_of(
    worker: WorkerProcess, model: Case, engine: Engine, prompts: list[list[int]]
) -> list[tuple[int, str]]:
    """What is wrong with what the ranks of an engine load, by the number of the prompt."""
    ranks = [*map(asdict, engine.ranks(model))]
    answer = worker.call("read_model", model, ranks=ranks, prompts=prompts)
    return [(number, fault) for rank in answer["wrong"] for number, fault in enumerate(rank) if fault]


def check_all_pairs(workers: Workers, model: Case, writing: list[Engine], reading: list[Engine]) -> None:
    prompts = write_all(workers[0], model, writing)
    faults = [
        f"{writing[number]}, read by {reader}: {fault}"
        for reader in reading
        for number, fault in faults_of(workers[1], model, reader, prompts)
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_each_layout_tp_and_pp_size_loads_the_pages_of_each_other(
    workers: Workers, store: Cluster, kind: str
) -> None:
    model = model_case(store, f"all-pairs-{kind}", kind=kind)
    check_all_pairs(workers, model, all_engines(kind), all_engines(kind))


@pytest.mark.parametrize(
    ("writes", "reads"), [("layer_first", "page_first_direct"), ("page_first_direct", "layer_first")]
)
def test_layouts_of_latent_rows_with_the_same_bytes_share_without_being_told(
    workers: Workers, store: Cluster, writes: str, reads: str
) -> None:
    model = native_case(store, f"same-rows-{writes}", kind="mla")
    check_all_pairs(workers, model, [Engine(writes)], [Engine(reads), Engine(reads, tp_size=2)])


@pytest.mark.parametrize(("kind", "as_it_lies"), [("mha", "layer_first"), ("mla", "page_first_direct")])
def test_engines_that_are_not_told_share_where_their_pages_lie_in_the_canonical_order(
    workers: Workers, store: Cluster, kind: str, as_it_lies: str
) -> None:
    told, not_told = (
        new_case(store, f"not-told-{kind}", kind=kind) for new_case in (whole_canonical_case, native_case)
    )
    prompts = write_all(workers[0], told, [Engine("page_first")])
    assert not faults_of(workers[1], not_told, Engine(as_it_lies), prompts)
    others = [layout for layout in LAYOUTS[kind] if layout not in (as_it_lies, "layer_first")]
    for layout in others:
        assert faults_of(workers[1], not_told, Engine(layout), prompts) == [
            (0, "hit 0, loaded 0 of 8 tokens")
        ]


@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_flat_pages_of_the_copying_interface_are_stored_in_the_same_order(
    workers: Workers, store: Cluster, kind: str
) -> None:
    by_address = model_case(store, f"flat-{kind}", kind=kind)
    flat = replace(by_address, interface_v1=0)
    engines = [Engine(layout, pp_size=2) for layout in LAYOUTS[kind]]
    prompts = write_all(workers[0], flat, engines)
    for engine in engines:
        assert not faults_of(workers[1], flat, engine, prompts), str(engine)
    assert not faults_of(workers[1], by_address, Engine("page_first"), prompts)


def test_keys_and_values_of_different_width_share_too(workers: Workers, store: Cluster) -> None:
    engines = [Engine(*how) for how in product(("page_first", "page_first_direct"), (1, 2), PP_SIZES)]
    model = model_case(store, "asymmetric", kind="mha_asymmetric")
    check_all_pairs(workers, model, engines, engines)


def test_elements_of_one_byte_share_too(workers: Workers, store: Cluster) -> None:
    model = model_case(store, "fp8", dtype="float8_e4m3fn", options={"kv_dtype": "fp8_e4m3"})
    engines = [Engine("page_first", tp_size=2), Engine("page_head"), Engine("layer_first", pp_size=2)]
    check_all_pairs(workers, model, engines, engines)


def test_layers_that_do_not_come_out_even_are_shared_as_far_as_they_are_cut_alike(
    workers: Workers, store: Cluster
) -> None:
    model = model_case(store, "uneven-layers", layers=7, options={"layers_per_object": 3})

    def stages(tp_size: int) -> list[Case]:
        return [
            replace(rank, pp_rank=pp_rank, pp_size=2, first_layer=start, layers=layers)
            for pp_rank, start, layers in ((0, 0, 3), (1, 3, 4))
            for rank in Engine("page_head", tp_size).ranks(model)
        ]

    ranks = [*map(asdict, stages(2))]
    stored = workers[0].call("write_model", model, ranks=ranks, prompts=[prompt_of(0)])["stored_tokens"]
    assert stored == [[PAGES * PAGE_TOKENS]] * 4
    assert not faults_of(workers[1], model, Engine("page_first"), [prompt_of(0)])
    answer = workers[1].call("read_model", model, ranks=[*map(asdict, stages(1))], prompts=[prompt_of(0)])
    assert answer["wrong"] == [[""], [""]]


TRANSPORTS: dict[str, dict[str, Any]] = {
    "tcp": {"options": {"same_host": False}},
    "same_host": {"options": {"tcp": False}},
    "same_host, pool in shared memory": {"options": {"tcp": False}, "allocator": "shm"},
}


@pytest.mark.parametrize("how", TRANSPORTS)
def test_pages_of_thousands_of_pieces_come_back_over_each_transport(
    workers: Workers, store: Cluster, how: str
) -> None:
    # page_head: 8 layers x K and V x 64 tokens x 4 heads = 4096 pieces of 16 bytes a page; page_first: a fourth of that.
    model = whole_canonical_case(store, f"pieces-{how}", layers=8, page_size=64, **TRANSPORTS[how])
    engines = [Engine("page_head"), Engine("page_first"), Engine("layer_first")]
    prompts = [[100_000 * (number + 1), number, 4] for number in range(len(engines))]
    for engine, prompt in zip(engines, prompts, strict=True):
        ranks = [*map(asdict, engine.ranks(model))]
        answer = workers[0].call("write_model", model, ranks=ranks, prompts=[prompt])
        assert answer["stored_tokens"] == [[4 * 64]]
    for engine in engines:
        assert not faults_of(workers[1], model, engine, prompts), str(engine)


@pytest.mark.parametrize(
    ("writes", "reads"), [("layer_first", "page_first_direct"), ("page_first_direct", "layer_first")]
)
def test_side_pools_of_keys_and_values_are_shared_with_the_pages(
    workers: Workers, store: Cluster, writes: str, reads: str
) -> None:
    # The harness reads a page of either layout in the same order, so that digests can be compared.
    heads = {"layers": 2, "heads": HEADS, "head_dim": 8}
    case = replace(
        model_case(store, f"side-pools-{writes}", pages=6, options={"tag": "side pools"}),
        side_pools={"swa": {"window": 3, **heads}, "draft": heads},
        draft_model="acme/draft",
    )
    written = workers[0].write(replace(case, layout=writes))
    loaded = workers[1].read(replace(case, layout=reads))
    assert loaded["loaded_tokens"] == 6 * PAGE_TOKENS, workers[1].log_tail()
    assert loaded["digests"] == written["digests"]
    assert loaded["side_pages"]["swa"] == 3
    for name in case.side_pools:
        assert loaded["side_digests"][name] == written["side_digests"][name]["6"], name
