"""One process backs pages up through SGLang's controller, another one prefetches them: the bytes must
be the same.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from sglang_harness.case import Case
from sglang_harness.worker_process import WorkerProcess

from support.processes import Cluster

Workers = tuple[WorkerProcess, WorkerProcess]

TRANSPORTS = {"tcp": {"same_host": False}, "same_host": {"tcp": False}}
LAYOUTS = [("mha", layout) for layout in ("layer_first", "page_first", "page_first_direct", "page_head")]
LAYOUTS += [("mla", layout) for layout in ("layer_first", "page_first", "page_first_direct")]


def check_round_trip(workers: Workers, case: Case) -> tuple[dict[str, object], dict[str, object]]:
    writer, reader = workers
    tokens = case.pages * case.page_size
    written = writer.write(case)
    assert written["stored_tokens"] == tokens, writer.log_tail()
    loaded = reader.read(case)
    assert loaded["hit_tokens"] == tokens, reader.log_tail()
    assert loaded["loaded_tokens"] == tokens, reader.log_tail()
    assert loaded["digests"] == written["digests"]
    assert len(set(written["digests"])) == case.pages  # else the comparison would prove nothing
    return written, loaded


def case_for(store: Cluster, name: str, transport: str, **fields: object) -> Case:
    return Case(
        model_name=f"acme/{name}", options={"masters": store.masters, **TRANSPORTS[transport]}, **fields
    )


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("controller", ["base", "hybrid"])
@pytest.mark.parametrize(("kind", "layout"), LAYOUTS)
def test_pages_come_back_byte_equal_in_another_process(
    workers: Workers, store: Cluster, kind: str, layout: str, controller: str, transport: str
) -> None:
    name = f"{kind}-{layout}-{controller}-{transport}"
    check_round_trip(
        workers, case_for(store, name, transport, kind=kind, layout=layout, controller=controller)
    )


@pytest.mark.parametrize("layout", ["page_first", "page_first_direct"])
def test_keys_and_values_of_different_width_come_back_byte_equal(
    workers: Workers, store: Cluster, layout: str
) -> None:
    check_round_trip(
        workers, case_for(store, f"asymmetric-{layout}", "tcp", kind="mha_asymmetric", layout=layout)
    )


@pytest.mark.parametrize(
    ("kind", "layout"),
    [("mha", "layer_first"), ("mha", "page_first"), ("mha", "page_head"), ("mla", "page_first")],
)
def test_the_copying_interface_v0_round_trips_too(
    workers: Workers, store: Cluster, kind: str, layout: str
) -> None:
    check_round_trip(
        workers, case_for(store, f"v0-{kind}-{layout}", "tcp", kind=kind, layout=layout, interface_v1=0)
    )


@pytest.mark.parametrize("layout", ["page_first", "page_head"])
def test_what_v0_wrote_serves_v1_where_the_bytes_are_the_same(
    workers: Workers, store: Cluster, layout: str
) -> None:
    case = case_for(store, f"v0-v1-{layout}", "tcp", layout=layout, interface_v1=0)
    written = workers[0].write(case)
    loaded = workers[1].read(replace(case, interface_v1=1))
    assert loaded["loaded_tokens"] == case.pages * case.page_size
    assert loaded["digests"] == written["digests"]


def test_what_v0_wrote_is_a_miss_for_v1_where_the_bytes_differ(workers: Workers, store: Cluster) -> None:
    case = case_for(store, "v0-v1-layer_first", "tcp", layout="layer_first", interface_v1=0)
    assert workers[0].write(case)["stored_tokens"] == case.pages * case.page_size
    assert workers[1].read(replace(case, interface_v1=1))["hit_tokens"] == 0


@pytest.mark.parametrize("kind", ["mha", "mha_asymmetric", "mla"])
def test_a_pool_in_shared_memory_round_trips_over_the_same_host_transport(
    workers: Workers, store: Cluster, kind: str
) -> None:
    check_round_trip(workers, case_for(store, f"shm-{kind}", "same_host", kind=kind, allocator="shm"))


def test_two_tp_ranks_of_an_mha_model_store_different_objects(workers: Workers, store: Cluster) -> None:
    ranks = [
        case_for(store, "tp2-mha", "tcp", tp_rank=rank, tp_size=2, heads=2, seed=100 + rank)
        for rank in range(2)
    ]
    first = workers[0].write(ranks[0])
    assert workers[1].read(ranks[1])["hit_tokens"] == 0, "rank 1 was served rank 0's heads"
    second = workers[1].write(ranks[1])
    assert set(first["digests"]).isdisjoint(second["digests"])
    for case, written in zip(ranks, (first, second), strict=True):
        assert workers[0].read(case)["digests"] == written["digests"]


def test_two_tp_ranks_of_an_mla_model_share_one_object(workers: Workers, store: Cluster) -> None:
    writer, reader = (
        case_for(store, "tp2-mla", "tcp", kind="mla", tp_rank=rank, tp_size=2) for rank in range(2)
    )
    written = workers[0].write(writer)
    assert workers[1].read(reader)["digests"] == written["digests"]


@pytest.mark.parametrize(("write_size", "read_size"), [(1, 2), (2, 1), (1, 4), (4, 2), (2, 2)])
def test_fleets_of_different_tp_sizes_share_pages_through_tp_lcm_size(
    workers: Workers, store: Cluster, write_size: int, read_size: int
) -> None:
    heads, name = 4, f"lcm-{write_size}-{read_size}"

    def rank_case(rank: int, size: int) -> Case:
        return case_for(
            store,
            name,
            "tcp",
            layout="page_head",
            pages=12,
            heads=heads // size,
            tp_rank=rank,
            tp_size=size,
            tp_lcm_size=4,
            seed=7 + rank,
        )

    written = [workers[0].write(rank_case(rank, write_size)) for rank in range(write_size)]
    loaded = [workers[1].read(rank_case(rank, read_size)) for rank in range(read_size)]
    assert [got["loaded_tokens"] for got in loaded] == [12 * 16] * read_size
    assert all_heads(loaded) == all_heads(written)


def all_heads(ranks: list[dict[str, list[list[str]]]]) -> list[list[str]]:
    """For each page, the digests of all heads of the model in their order: the ranks' heads one after
    the other.
    """
    pages = zip(*(rank["heads"] for rank in ranks), strict=True)
    return [[head for rank in page for head in rank] for page in pages]
