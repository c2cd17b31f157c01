"""From SGLang's configuration and pool to identity: what must differ differs, what must agree agrees."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hicache_adapter import AdapterConfig, ConfigError
from hicache_adapter.model_facts import ModelFacts, read_model_facts
from hicache_adapter.page_identity import UnusableRankError, page_identity
from hicache_adapter.rank_coordinates import RankCoordinates
from kvstore_client import Identity


class HostPool(SimpleNamespace):
    """The attributes of an SGLang host pool that say what its bytes are."""


def mha_pool(**changes: Any) -> HostPool:
    fields = {
        "dtype": "torch.bfloat16",
        "layout": "page_first",
        "page_size": 64,
        "layer_num": 32,
        "target_layer_num": 32,
        "start_layer": 0,
        "head_num": 8,
        "head_dim": 128,
        "v_head_dim": 128,
    }
    return HostPool(**(fields | changes))


def mla_pool(**changes: Any) -> HostPool:
    fields = {
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "kv_cache_dim": 576,
        "head_num": 1,
        "head_dim": 576,
    }
    return mha_pool(**(fields | changes))


def laid_out(*layouts: str) -> HostPool:
    """A pool of 0.5.23 whose device buffers have these layouts; draft layers come last."""
    infos = [SimpleNamespace(buffers=SimpleNamespace(layout=SimpleNamespace(value=name))) for name in layouts]
    return mha_pool(_buffer_infos=tuple(infos))


def sglang_config(**changes: Any) -> RankCoordinates:
    fields = {"tp_rank": 0, "tp_size": 1, "is_mla_model": False, "model_name": "acme/model"}
    return RankCoordinates.of(SimpleNamespace(**(fields | changes)))


def identity(
    config: Any = None, pool: Any = None, facts: ModelFacts | None = None, flat: bool = False, **options: Any
) -> Identity:
    adapter = AdapterConfig.from_extra_config({"masters": "a:1"} | options, {})
    return page_identity(
        config or sglang_config(), pool or mha_pool(), adapter, facts or ModelFacts(), flat_pages=flat
    )


VARIANTS = {
    "base": lambda: identity(),
    "another model": lambda: identity(sglang_config(model_name="acme/other")),
    "no model name": lambda: identity(sglang_config(model_name=None)),
    "float16": lambda: identity(pool=mha_pool(dtype="torch.float16")),
    "fp8_e4m3": lambda: identity(
        pool=mha_pool(dtype="torch.uint8"), facts=ModelFacts(kv_cache_dtype="fp8_e4m3")
    ),
    "fp8_e5m2": lambda: identity(
        pool=mha_pool(dtype="torch.uint8"), facts=ModelFacts(kv_cache_dtype="fp8_e5m2")
    ),
    "fp8 of an accelerator that has another format": lambda: identity(
        pool=mha_pool(dtype="torch.uint8"), facts=ModelFacts(kv_cache_dtype="fp8_e4m3fnuz")
    ),
    "scales of the KV cache": lambda: identity(
        pool=mha_pool(dtype="torch.uint8"), facts=ModelFacts(kv_cache_dtype="fp8_e4m3", kv_scales="5ca1e")
    ),
    "fp8 stored as such": lambda: identity(pool=mha_pool(dtype="torch.float8_e4m3fn")),
    "page_head": lambda: identity(pool=mha_pool(layout="page_head")),
    "page_first_direct": lambda: identity(pool=mha_pool(layout="page_first_direct")),
    "layer_first": lambda: identity(pool=mha_pool(layout="layer_first")),
    "layer_first, flat": lambda: identity(pool=mha_pool(layout="layer_first"), flat=True),
    "heads before tokens": lambda: identity(pool=laid_out("hnd")),
    "heads before tokens in the draft's layer": lambda: identity(pool=laid_out("nhd", "hnd")),
    "vectors of an accelerator": lambda: identity(pool=laid_out("vectorized_5d")),
    "page size": lambda: identity(pool=mha_pool(page_size=32)),
    "head count": lambda: identity(pool=mha_pool(head_num=4)),
    "head width": lambda: identity(pool=mha_pool(head_dim=64)),
    "value width": lambda: identity(pool=mha_pool(v_head_dim=64)),
    "pool class": lambda: identity(pool=type("OtherPool", (HostPool,), {})(**vars(mha_pool()))),
    "mla": lambda: identity(sglang_config(is_mla_model=True), mla_pool()),
    "mla row width": lambda: identity(sglang_config(is_mla_model=True), mla_pool(kv_cache_dim=656)),
    "packed draft layers": lambda: identity(pool=mha_pool(layer_num=33)),
    "another draft model": lambda: identity(
        pool=mha_pool(layer_num=33), facts=ModelFacts(draft_model="acme/draft@2")
    ),
    "revision": lambda: identity(revision="r2"),
    "revision told by sglang": lambda: identity(facts=ModelFacts(revision="r3")),
    "weights": lambda: identity(facts=ModelFacts(weights="77e1")),
    "other weights": lambda: identity(facts=ModelFacts(weights="77e2")),
    "made-up weights": lambda: identity(facts=ModelFacts(dummy_weights="dummy/1234")),
    "weights made up from another seed": lambda: identity(facts=ModelFacts(dummy_weights="dummy/1")),
    "made-up weights of a revision": lambda: identity(
        facts=ModelFacts(dummy_weights="dummy/1234"), revision="r4"
    ),
    "the revision of those": lambda: identity(revision="r4"),
    "adapters": lambda: identity(facts=ModelFacts(adapters="ada")),
    "tag": lambda: identity(tag="blue"),
    "quantized weights": lambda: identity(facts=ModelFacts(quantization="awq")),
    "rope override": lambda: identity(facts=ModelFacts(model_overrides='{"rope_theta":1e6}')),
}


def test_every_difference_that_changes_bytes_is_another_identity() -> None:
    names: dict[bytes, str] = {}
    for name, make in VARIANTS.items():
        encoded = make().canonical()
        assert encoded not in names, f"{name} collides with {names[encoded]}"
        names[encoded] = name


def test_the_usual_device_layout_leaves_the_identity_as_it_is() -> None:
    older = mha_pool(device_pool=SimpleNamespace(kv_cache_layout="nhd"))
    for pool in (laid_out("nhd"), laid_out("nhd", "nhd"), older):
        assert identity(pool=pool).canonical() == identity().canonical()


def test_a_pool_of_an_older_sglang_tells_its_device_layout_too() -> None:
    older = mha_pool(device_pool=SimpleNamespace(kv_cache_layout="hnd"))
    assert identity(pool=older) == identity(pool=laid_out("hnd"))


@pytest.mark.parametrize("tp_size", [1, 2, 4, 8])
def test_ranks_and_tp_sizes_of_one_model_share_the_identity(tp_size: int) -> None:
    for rank in range(tp_size):
        config = sglang_config(tp_rank=rank, tp_size=tp_size, dp_rank=rank % 2, pp_rank=0, pp_size=1)
        assert identity(config, mha_pool(head_num=8 // tp_size)) == identity()


def test_flat_pages_differ_only_where_their_bytes_do() -> None:
    for layout in ("page_first", "page_first_direct", "page_head"):
        pool = mha_pool(layout=layout)
        assert identity(pool=pool, flat=True) == identity(pool=pool)
    config, pool = sglang_config(is_mla_model=True), mla_pool(layout="layer_first")
    assert identity(config, pool, flat=True) == identity(config, pool)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("layout", ["page_first", "page_first_direct", "page_head", "layer_first"])
def test_in_the_canonical_order_all_layouts_and_interfaces_share_with_what_lies_in_it_anyway(
    layout: str, flat: bool
) -> None:
    pool = mha_pool(layout=layout)
    as_it_lies = identity(pool=mha_pool(layout="layer_first"))
    assert identity(pool=pool, flat=flat, byte_order="canonical") == as_it_lies


@pytest.mark.parametrize("layout", ["page_first", "page_first_direct", "layer_first"])
def test_in_the_canonical_order_all_layouts_of_latent_rows_share(layout: str) -> None:
    config, pool = sglang_config(is_mla_model=True), mla_pool(layout=layout)
    as_it_lies = identity(config, mla_pool(layout="page_first_direct"))
    assert identity(config, pool, byte_order="canonical") == as_it_lies


def test_layouts_of_latent_rows_with_the_same_bytes_share_and_others_do_not() -> None:
    config = sglang_config(is_mla_model=True)
    layer_first, direct, page_first = (
        identity(config, mla_pool(layout=layout))
        for layout in ("layer_first", "page_first_direct", "page_first")
    )
    assert layer_first == direct != page_first
    assert (
        direct.byte_order == "page_first_direct"
    )  # as in releases that kept them apart: its pages are still found


def test_the_canonical_order_is_refused_where_the_device_orders_a_layer_otherwise() -> None:
    with pytest.raises(ConfigError, match=r"^byte_order: .*'hnd'.*use byte_order native"):
        identity(pool=laid_out("hnd"), byte_order="canonical")


@pytest.mark.parametrize(
    ("told", "meant"), [("bf16", "bfloat16"), ("fp8_e4m3", "fp8_e4m3"), ("half", "float16")]
)
def test_a_kv_dtype_in_the_extra_config_wins_and_is_normalized(told: str, meant: str) -> None:
    made = identity(pool=mha_pool(dtype="torch.uint8"), kv_dtype=told)
    assert (made.kv_dtype, made.store_dtype) == (meant, "uint8")


REVISION_REMEDY = 'put "revision" into the extra config'
UNKNOWN = {
    "the kind of fp8": (lambda: identity(pool=mha_pool(dtype="torch.uint8")), '"kv_dtype": "fp8_e4m3"'),
    "weights": (lambda: identity(facts=ModelFacts(unknown={"weights": "s3://x is far"})), REVISION_REMEDY),
    "adapters": (lambda: identity(facts=ModelFacts(unknown={"adapters": "x is far"})), REVISION_REMEDY),
    "a packed draft": (
        lambda: identity(
            pool=mha_pool(layer_num=33), facts=ModelFacts(unknown={"draft_model": "x is far"}), revision="1"
        ),
        "--speculative-draft-model-revision",
    ),
    "KV scales": (
        lambda: identity(
            pool=mha_pool(dtype="torch.uint8"),
            facts=ModelFacts(kv_cache_dtype="fp8_e4m3", unknown={"kv_scales": "x can't be read"}),
        ),
        "scales of the KV cache",
    ),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_can_not_be_told_turns_the_store_off_with_the_remedy(what: str) -> None:
    make, remedy = UNKNOWN[what]
    with pytest.raises(UnusableRankError) as refused:
        make()
    assert remedy in str(refused.value)


def test_what_is_unknown_of_things_that_are_not_stored_does_no_harm() -> None:
    nothing_stored = ModelFacts(unknown={"draft_model": "x", "kv_scales": "y"})
    assert identity(facts=nothing_stored) == identity()


def test_a_revision_from_the_operator_goes_before_the_look_of_the_weights() -> None:
    for facts in (ModelFacts(weights="77e1"), ModelFacts(unknown={"weights": "x", "adapters": "y"})):
        assert identity(facts=facts, revision="r2") == identity(revision="r2")
    assert identity(facts=ModelFacts(revision="main", weights="77e1")).weights == "77e1"


def test_the_identity_of_a_model_with_a_revision_is_what_earlier_releases_made_of_it() -> None:
    assert identity(revision="r2", facts=ModelFacts(weights="77e1")).canonical() == (
        b'{"byte_order":"page_first","format_version":1,"head_count":8,"head_dim":128,"kind":"kv_pages",'
        b'"kv_dtype":"bfloat16","model":"acme/model","page_size":64,"pool_class":"HostPool","revision":"r2",'
        b'"store_dtype":"bfloat16","v_head_dim":128}'
    )
    latent = identity(
        sglang_config(is_mla_model=True), mla_pool(layer_num=33), revision="r2", tag="blue", flat=True
    )
    assert latent.canonical() == (
        b'{"byte_order":"page_first","draft_layer_count":1,"format_version":1,"kind":"kv_pages",'
        b'"kv_dtype":"bfloat16","model":"acme/model","page_size":64,"pool_class":"HostPool","revision":"r2",'
        b'"row_dim":576,"store_dtype":"bfloat16","tag":"blue"}'
    )


@pytest.mark.parametrize("told", ["", "fp8_e4m3"])
def test_the_device_pool_of_an_older_sglang_knows_its_kind_of_fp8_better(told: str) -> None:
    device_pool = SimpleNamespace(dtype="torch.float8_e4m3fnuz")
    made = identity(
        pool=mha_pool(dtype="torch.uint8", device_pool=device_pool), facts=ModelFacts(kv_cache_dtype=told)
    )
    assert made.kv_dtype == "fp8_e4m3fnuz"
    packed = mha_pool(dtype="torch.uint8", device_pool=SimpleNamespace(dtype="torch.uint8"))
    assert identity(pool=packed, facts=ModelFacts(kv_cache_dtype="mxfp8")).kv_dtype == "mxfp8"


def test_outside_of_a_server_there_are_no_model_facts() -> None:
    assert read_model_facts().kv_cache_dtype == ""
