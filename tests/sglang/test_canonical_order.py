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
                start_layer=pp_rank * layers,
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
    return Case(model_name=f"acme/{name}", tp_lcm_size=HEADS, options=options, **(usual | fields))


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
