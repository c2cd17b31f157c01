"""Which pages answer for which: every rank of every geometry gets its own bytes back, and none of another model, number
format, layout or rank. With SGLang's host pools and a real store.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.model_loader.weight_utils import initialize_dummy_weights
from sglang.srt.runtime_context import get_context
from sglang_harness.case import Case
from sglang_harness.engine import Engine
from sglang_harness.lone_rank import LoneRank, Model, Place

from hicache_adapter.backend import KVStoreHiCache
from hicache_adapter.hash_seeding import hashes_are_seeded
from hicache_adapter.model_facts import read_model_facts
from kvstore_client import Client, Identity, Shard
from support.checkpoints import edit_tensor, write_checkpoint
from support.processes import Cluster, segment_metrics
from support.running_cluster import running_cluster


def keys_for(*what: object) -> list[str]:
    """Two page hashes of their own."""
    return [hashlib.sha256(repr((what, page)).encode()).hexdigest() for page in range(2)]


def places(tp_size: int, pp_size: int, cp_size: int) -> list[Place]:
    return [
        Place(tp, tp_size, pp, pp_size, cp, cp_size)
        for tp, pp, cp in itertools.product(range(tp_size), range(pp_size), range(cp_size))
    ]


def seed_of(model: Model, place: Place) -> int:
    """Ranks that hold the same part have the same bytes, all others have bytes of their own."""
    part = (model.name, model.kind, place.pp_rank, place.cp_rank, 0 if model.kind == "mla" else place.tp_rank)
    return int.from_bytes(hashlib.sha256(repr(part).encode()).digest()[:4])


GEOMETRIES = [
    pytest.param(tp, pp, cp, marks=[] if tp * pp * cp in (1, 4, 8) else pytest.mark.long)
    for tp, pp, cp in itertools.product((1, 2, 4, 8), (1, 2), (1, 2))
]


@pytest.mark.parametrize("kind", ["mha", "mla"])
@pytest.mark.parametrize(("tp_size", "pp_size", "cp_size"), GEOMETRIES)
def test_every_rank_of_two_models_gets_its_own_bytes_back(
    store: Cluster, kind: str, tp_size: int, pp_size: int, cp_size: int
) -> None:
    options = {"masters": store.masters, "deadline_ms": 5000, "tag": f"{tp_size} {pp_size} {cp_size}"}
    models = [Model(name, kind, options=options) for name in ("acme/model", "acme/other")]
    ranks = [(model, place) for model in models for place in places(tp_size, pp_size, cp_size)]
    keys = keys_for("the same prompt for all")
    written: dict[tuple[Model, Place], list[bytes]] = {}
    for model, place in reversed(ranks):  # rank 0 last: what the others write must not be its own
        with LoneRank(model, place) as rank:
            written[str(model), place] = rank.write(keys, seed_of(model, place))
    parts = {tuple(pages) for pages in written.values()}
    assert len(parts) == 2 * (1 if kind == "mla" else tp_size) * pp_size * cp_size
    for model, place in ranks:
        with LoneRank(model, place) as rank:
            assert rank.read(keys) == written[str(model), place]


def test_what_eight_cp_ranks_have_written_is_what_each_of_them_asks_for(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as store:
        model = Model(kind="mla", options={"masters": store.masters, "deadline_ms": 5000})
        keys, ranks = keys_for("cp"), places(1, 1, 8)
        written = []
        for place in ranks:
            with LoneRank(model, place) as rank:
                assert rank.read(keys) is None
                written.append(rank.write(keys, seed_of(model, place)))
        assert segment_metrics(next(iter(store.segments.values())))["object_count"] == 8 * len(keys)
        for place, pages in zip(ranks, written, strict=True):
            with LoneRank(model, place) as rank:
                assert rank.read(keys) == pages


@dataclass(frozen=True)
class World:
    """An engine's configuration, of which one thing at a time is changed."""

    case: dict[str, Any]
    settings: dict[str, Any]
    options: dict[str, Any]
    place: Place = field(default_factory=Place)


def worlds(directory: Path) -> dict[str, Callable[[World], World]]:
    """Name of the change -> what it makes of a world."""
    scales = directory / "scales.json"
    scales.write_text("{}")
    retrained = write_checkpoint(directory / "retrained", seed=2)

    def case(**changes: Any) -> Callable[[World], World]:
        return lambda world: replace(world, case=world.case | changes)

    def settings(**changes: Any) -> Callable[[World], World]:
        return lambda world: replace(world, settings=world.settings | changes)

    def options(**changes: Any) -> Callable[[World], World]:
        return lambda world: replace(world, options=world.options | changes)

    fp8 = {"dtype": "float8_e4m3fn"}
    return {
        "nothing": lambda world: world,
        "fp16": case(dtype="float16"),
        "fp8_e4m3": lambda world: case(**fp8)(settings(kv_cache_dtype="fp8_e4m3")(world)),
        "fp8_e5m2": lambda world: case(dtype="float8_e5m2")(settings(kv_cache_dtype="fp8_e5m2")(world)),
        "fp8_e4m3 with scales": lambda world: case(**fp8)(
            settings(kv_cache_dtype="fp8_e4m3", quantization_param_path=str(scales))(world)
        ),
        "page size": case(page_size=32),
        "page_first_direct": case(layout="page_first_direct"),
        "page_head": case(layout="page_head"),
        "layer_first": case(layout="layer_first"),
        "half the heads": case(heads=4),
        "half the head width": case(head_dim=4),
        "MLA": case(kind="mla"),
        "other layers": case(first_layer=4),
        "half the layers": case(layers=2),
        "model name": case(model_name="acme/other"),
        "revision": options(revision="2"),
        "tag": options(tag="blue"),
        "weights": settings(model_path=str(retrained)),
        "load format": settings(load_format="dummy"),
        "quantization": settings(quantization="w8a8_int8"),
        "rope scaling": settings(json_model_override_args=json.dumps({"rope_scaling": {"factor": 4.0}})),
        "adapters": settings(enable_lora=True, lora_paths=[f"a={retrained}"]),
        "second rank of two": lambda world: replace(world, place=Place(1, 2)),
        "second stage of two": lambda world: replace(
            case(first_layer=4)(world), place=Place(pp_rank=1, pp_size=2)
        ),
        "second of two context-parallel ranks": lambda world: replace(
            world, place=Place(cp_rank=1, cp_size=2)
        ),
    }


def test_whatever_one_thing_is_changed_none_of_the_pages_answers(store: Cluster, tmp_path: Path) -> None:
    base = World(
        case={},
        settings={"model_path": str(write_checkpoint(tmp_path / "model"))},
        options={"masters": store.masters, "deadline_ms": 5000},
    )
    changes = worlds(tmp_path)
    keys = keys_for(tmp_path)

    def rank(name: str) -> LoneRank:
        world = changes[name](base)
        return LoneRank(Model(options=world.options), world.place, world.settings, **world.case)

    written: dict[str, list[bytes]] = {}
    for number, name in enumerate(changes):
        with rank(name) as writer:
            assert writer.backend.batch_exists(keys) == 0, f"pages of another answer for: {name}"
            written[name] = writer.write(keys, seed=number)
    for name in changes:
        with rank(name) as reader:
            assert reader.read(keys) == written[name], name


@pytest.mark.parametrize("wrong_bytes", [-1, 1])
def test_an_object_of_another_size_is_a_miss_and_a_counted_conflict(store: Cluster, wrong_bytes: int) -> None:
    model = Model(options={"masters": store.masters, "deadline_ms": 5000, "tag": f"size {wrong_bytes}"})
    keys = keys_for("size", wrong_bytes)
    with LoneRank(model, Place()) as rank, Client(store.masters) as client:
        page_store = rank.backend._store(flat_pages=False)
        identity, shards = page_store.identity, page_store.shards
        assert isinstance(identity, Identity) and all(isinstance(shard, Shard) for shard in shards)
        pages = client.namespace(identity).pages(shards=shards)
        plan = rank.backend._plan
        assert plan is not None
        size = plan.page_bytes + wrong_bytes
        assert pages.put(keys[0], bytes(size))
        rank.pool.kv_buffer.fill_(1)
        assert rank.backend.batch_get_v1(keys, rank.slots) == [False, False]
        assert bool((rank.pool.kv_buffer == 1).all()), "not a byte of it is in the pool"
        assert rank.backend.batch_set_v1(keys, rank.slots) == [False, True]
        assert rank.backend.counters()["put_conflicts"] == 1


def test_an_engine_whose_weights_can_not_be_told_stores_nothing_and_says_so_once(
    store: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    keys = keys_for("unknown")
    settings = {"model_path": "s3://bucket/model"}
    options = {"masters": store.masters, "deadline_ms": 5000}
    for revision in ("", "2026-11"):
        caplog.clear()
        model = Model(options=options | {"revision": revision})
        with LoneRank(model, Place(), settings) as rank:
            stored = rank.backend.batch_set_v1(keys, rank.slots)
            assert rank.backend.batch_exists(keys) == (2 if revision else 0)
        assert stored == [bool(revision)] * 2
        refusals = [line for line in caplog.messages if "nothing is stored or loaded" in line]
        assert len(refusals) == (0 if revision else 1)
        assert all("s3://bucket/model" in line and '"revision"' in line for line in refusals)


class PoolOfAnotherForm:
    """Keeps something, and has neither heads nor latent rows."""

    def __init__(self, pool: Any) -> None:
        self.kv_buffer, self.layout, self.page_size = pool.kv_buffer, pool.layout, pool.page_size
        self.size, self.dtype, self.layer_num = pool.size, pool.dtype, pool.layer_num
        self.get_page_buffer_meta = pool.get_page_buffer_meta


def test_an_anchor_pool_of_unknown_form_turns_the_store_off_with_one_line(
    store: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with LoneRank(Model(options={"masters": store.masters}), Place()) as rank:
        backend = KVStoreHiCache(rank.config, {})
        try:
            backend.register_mem_pool_host(PoolOfAnotherForm(rank.pool))
            assert backend.batch_set_v1(keys_for("form"), rank.slots) == [False, False]
            assert backend.batch_exists(keys_for("form")) == 0
        finally:
            backend.close()
    (line,) = [line for line in caplog.messages if "nothing is stored or loaded" in line]
    assert "PoolOfAnotherForm" in line and "head_num" in line


def test_made_up_weights_don_t_depend_on_the_servers_random_seed() -> None:
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = torch.nn.Linear(8, 8)
        initialize_dummy_weights(model)
        drawn.append(model.weight.detach().clone())
    assert torch.equal(*drawn)
    with get_context().override_server_args(load_format="dummy", random_seed=1):
        assert read_model_facts().dummy_weights == "dummy/1234"


def test_an_adapter_that_was_trained_anew_in_its_place_has_pages_of_its_own(
    store: Cluster, tmp_path: Path
) -> None:
    """SGLang's page hashes name an adapter by its name and path."""
    assert hashes_are_seeded()
    adapter = write_checkpoint(tmp_path / "adapter")
    model = Model(options={"masters": store.masters, "deadline_ms": 5000, "tag": "adapter"})
    keys = keys_for("adapter")

    def rank() -> LoneRank:
        return LoneRank(model, Place(), {"enable_lora": True, "lora_paths": [f"a={adapter}"]})

    with rank() as before:
        pages = before.write(keys, seed=1)
    with rank() as again:
        assert again.read(keys) == pages
    edit_tensor(adapter, "model.embed_tokens.weight", bytes(20_000))
    with rank() as after:
        assert after.read(keys) is None


def test_equal_drafts_under_other_paths_are_one_draft_and_others_are_not(tmp_path: Path) -> None:
    drafts = [write_checkpoint(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    identities = []
    for draft in drafts:
        with get_context().override_server_args(speculative_draft_model_path=str(draft)):
            identities.append(read_model_facts().draft_model)
    assert identities[0] == identities[1] != identities[2]


def test_an_update_from_disk_without_a_version_stops_loading_and_storing_until_it_is_named(
    store: Cluster,
) -> None:
    options = {"masters": store.masters, "tag": "unnamed update", "deadline_ms": 3000}
    with (
        get_context().override_server_args(model_path="dummy"),
        Engine(Case(pages=4, options=options)) as engine,
    ):
        tokens = engine.case.tokens
        slots = engine.host_pool.alloc(len(tokens))
        engine.fill(slots, seed=1)
        assert engine.backup(slots, tokens)[1] == len(tokens)
        get_context().override("model_runner.update_model_fields", model_path="/models/2")
        engine.controller.reset()
        assert engine.prefetch(tokens).hit_tokens == 0
        assert engine.backup(slots, tokens)[1] == 0
        get_context().override("scheduler.weight_version", weight_version="2")
        engine.controller.reset()
        assert engine.prefetch(tokens).hit_tokens == 0, "of the old weights"
        assert engine.backup(slots, tokens)[1] == len(tokens)
        assert engine.prefetch(tokens).hit_tokens == len(tokens)
