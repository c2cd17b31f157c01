"""Ranks of one tensor-parallel engine, and engines of different TP: who shares pages with whom, and that ranks
agree on what was found when they have not found the same.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sglang_harness.case import Case
from sglang_harness.worker_process import WorkerProcess

from support.processes import Cluster
from support.running_cluster import running_cluster
from support.tcp_proxy import TO_CLIENT, TcpProxy

Workers = tuple[WorkerProcess, WorkerProcess]

PAGES = 12
TOKENS = PAGES * 16
HEADS = 4


def tp_case(store: Cluster, name: str, **fields: Any) -> Case:
    """A rank of an engine with tp_lcm_size 4 on a model with 4 KV heads."""
    tp_size = fields.get("tp_size", 1)
    usual = {"layout": "page_head", "pages": PAGES, "heads": HEADS // tp_size, "tp_lcm_size": 4}
    options = {"masters": store.masters, "same_host": False, "deadline_ms": 3000} | fields.pop("options", {})
    return Case(model_name=f"acme/{name}", options=options, **(usual | fields))


MISMATCHES: dict[str, dict[str, Any]] = {
    "no tp_lcm_size at TP 1": {"tp_lcm_size": None},
    "no tp_lcm_size at TP 2": {"tp_lcm_size": None, "tp_size": 2},
    "another tp_lcm_size": {"tp_lcm_size": 2},
    "a layout without heads": {"layout": "page_first"},
    "more heads": {"heads": 2 * HEADS},
    "larger heads": {"head_dim": 32},
    "more layers": {"layers": 8},
    "another page size": {"page_size": 32, "pages": PAGES // 2},
}


@pytest.mark.parametrize("mismatch", MISMATCHES)
def test_an_engine_of_another_geometry_sees_none_of_the_pages(
    workers: Workers, store: Cluster, mismatch: str
) -> None:
    name = f"mismatch-{mismatch}"
    writer = tp_case(store, name)
    assert workers[0].write(writer)["stored_tokens"] == TOKENS
    other = workers[1].read(tp_case(store, name, **MISMATCHES[mismatch]))
    assert other["hit_tokens"] == 0
    assert workers[1].read(writer)["loaded_tokens"] == TOKENS  # they were there all the time


def test_an_engine_whose_tp_size_is_the_tp_lcm_size_shares_without_setting_it(
    workers: Workers, store: Cluster
) -> None:
    written = workers[0].write(tp_case(store, "implied"))
    for rank in range(4):
        loaded = workers[1].read(tp_case(store, "implied", tp_size=4, tp_rank=rank, tp_lcm_size=None))
        assert loaded["loaded_tokens"] == TOKENS
        assert [page[0] for page in loaded["heads"]] == [page[rank] for page in written["heads"]]


class Ranks:
    """The two workers as the two ranks of one engine, over a gloo group."""

    def __init__(self, workers: Workers, directory: Path) -> None:
        self._workers = workers
        self._directory = directory
        self._groups = 0

    def write(self, cases: list[Case]) -> list[dict[str, Any]]:
        """Both back their pages up."""
        return self._both("write", cases)

    def read(self, cases: list[Case]) -> list[dict[str, Any]]:
        """Both prefetch; the answers of both, or AssertionError when one hangs or fails."""
        return self._both("read", cases)

    def _both(self, verb: str, cases: list[Case]) -> list[dict[str, Any]]:
        self._groups += 1
        rendezvous = str(self._directory / f"group-{self._groups}")
        together = [replace(case, rendezvous=rendezvous) for case in cases]
        with ThreadPoolExecutor(len(cases)) as threads:
            answers = threads.map(lambda worker, case: worker.call(verb, case), self._workers, together)
            return list(answers)


@pytest.fixture
def ranks(workers: Workers, tmp_path: Path) -> Ranks:
    return Ranks(workers, tmp_path)


def rank_cases(store: Cluster, name: str, *options: dict[str, Any]) -> list[Case]:
    return [
        tp_case(store, name, tp_size=2, tp_rank=rank, seed=50 + rank, options=extra)
        for rank, extra in enumerate(options or ({}, {}))
    ]


def hits(answers: list[dict[str, Any]]) -> list[int]:
    return [answer["hit_tokens"] for answer in answers]


def loaded(answers: list[dict[str, Any]]) -> list[int]:
    return [answer["loaded_tokens"] for answer in answers]


@pytest.mark.parametrize("controller", ["base", "hybrid"])
def test_both_ranks_load_as_far_as_the_one_that_finds_less(
    ranks: Ranks, store: Cluster, controller: str
) -> None:
    cases = [replace(case, controller=controller) for case in rank_cases(store, f"uneven-{controller}")]
    written = ranks.write([cases[0], replace(cases[1], pages=7)])
    answers = ranks.read(cases)
    assert hits(answers) == loaded(answers) == [7 * 16, 7 * 16]
    for rank in range(2):
        assert answers[rank]["digests"] == written[rank]["digests"][:7]


def test_neither_rank_has_a_hit_when_one_of_them_can_not_reach_the_segment(
    ranks: Ranks, tmp_path: Path
) -> None:
    with running_cluster(tmp_path / "store") as store:
        cases = rank_cases(store, "unreachable", {"same_host": False}, {"same_host": True, "tcp": False})
        ranks.write(cases)
        assert hits(ranks.read(cases)) == [TOKENS, TOKENS]
        (tmp_path / "store" / "segment.sock").unlink()
        answers = ranks.read(cases)
        assert hits(answers) == [0, 0]
        assert loaded(answers) == [0, 0]


def test_both_ranks_drop_the_pages_that_one_of_them_could_not_load(ranks: Ranks, tmp_path: Path) -> None:
    with (
        closing(TcpProxy()) as proxy,
        running_cluster(tmp_path / "store", advertise_port=proxy.port) as store,
    ):
        proxy.target_port = store.segments["segment"].wait_event("listening")["port"]
        cases = rank_cases(
            store, "stalled", {"same_host": True, "tcp": False}, {"same_host": False, "tcp": True}
        )
        ranks.write(cases)
        proxy.stall(TO_CLIENT, after_bytes=20_000)  # behind the answer to exists, within the pages
        answers = ranks.read(cases)
        assert proxy.stalled.is_set()
        assert hits(answers) == [TOKENS, TOKENS]
        assert loaded(answers)[0] == loaded(answers)[1] < TOKENS
