"""What the adapter learns of a model from SGLang's settings and from the checkpoint that they name."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hicache_adapter import model_facts
from hicache_adapter.checkpoints import Checkpoint
from hicache_adapter.model_facts import ModelFacts, lora_is_on, read_model_facts
from hicache_adapter.weights_fingerprint import UnknownWeightsError, weights_fingerprint
from support.checkpoints import edit_tensor, write_checkpoint

CONTEXT = "sglang.srt.runtime_context"
GROUPS = ("model", "spec", "lora")

Says = Callable[..., ModelFacts]


@pytest.fixture
def sglang_says(monkeypatch: pytest.MonkeyPatch) -> Says:
    """The facts about an engine with these settings: `model_load_format="dummy"` is load_format of the group model."""

    def says(**settings: Any) -> ModelFacts:
        context = ModuleType(CONTEXT)
        for group in GROUPS:
            mine = {
                name.removeprefix(f"{group}_"): value
                for name, value in settings.items()
                if name.startswith(f"{group}_")
            }
            setattr(context, f"get_{group}", lambda mine=mine: SimpleNamespace(**mine))
        monkeypatch.setitem(sys.modules, CONTEXT, context)
        return read_model_facts()

    return says


def test_outside_of_a_server_there_is_nothing_to_know() -> None:
    assert read_model_facts() == ModelFacts()


@pytest.mark.parametrize("path", ["dummy", "none", "None"])
def test_an_engine_without_a_model_has_no_weights_to_tell(sglang_says: Says, path: str) -> None:
    assert sglang_says(model_model_path=path) == ModelFacts()


def test_weights_are_told_by_their_content_and_not_by_their_path(sglang_says: Says, tmp_path: Path) -> None:
    paths = [write_checkpoint(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    a, b, c = (sglang_says(model_model_path=str(path)).weights for path in paths)
    assert a == b != c and a


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"model_model_path": "s3://bucket/model"}, "s3://bucket/model is not on this host"),
        ({"model_model_path": "acme/model-that-no-hub-has"}, "neither a path nor in the hub's cache"),
        (
            {"model_model_path": "{here}", "model_load_format": "remote_instance"},
            "--load-format remote_instance",
        ),
        ({"model_model_path": "{here}", "model_load_format": "one of the future"}, "one of the future"),
    ],
)
def test_weights_that_are_not_on_this_host_are_unknown_with_the_reason(
    sglang_says: Says, tmp_path: Path, settings: dict[str, str], why: str
) -> None:
    here = str(write_checkpoint(tmp_path))
    facts = sglang_says(**{name: value.replace("{here}", here) for name, value in settings.items()})
    assert facts.weights == ""
    assert why in facts.unknown["weights"]


def test_a_commit_of_a_repository_tells_the_weights_and_a_branch_or_a_path_does_not(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    assert Checkpoint("acme/model", commit).has_commit
    assert not Checkpoint("acme/model", "main").has_commit
    assert not Checkpoint(str(write_checkpoint(tmp_path)), commit).has_commit
    assert not Checkpoint("s3://bucket/model", commit).has_commit


def test_a_scheduler_that_does_not_say_what_it_serves_has_unknown_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.scheduler", ModuleType("scheduler"))
    assert "does not say which checkpoint" in read_model_facts().unknown["weights"]


def test_made_up_weights_are_told_by_the_seed_they_are_drawn_from(
    sglang_says: Says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = ModuleType("weight_utils")
    monkeypatch.setitem(sys.modules, "sglang.srt.model_loader.weight_utils", loader)
    told = set()
    for seed in (1234, 5):
        loader.initialize_dummy_weights = lambda model, seed=seed: None  # type: ignore[attr-defined]
        for path in ("acme/model-that-no-hub-has", str(write_checkpoint(tmp_path))):
            facts = sglang_says(model_model_path=path, model_load_format="dummy")
            assert (facts.weights, dict(facts.unknown)) == ("", {})
            told.add(facts.dummy_weights)
    assert told == {"dummy/1234", "dummy/5"}


def test_scales_are_told_by_the_content_of_their_file(sglang_says: Says, tmp_path: Path) -> None:
    told = []
    for name, content in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / name).write_text(content)
        told.append(sglang_says(model_quantization_param_path=str(tmp_path / name)).kv_scales)
    assert told[0] == told[1] != told[2]
    assert "kv_scales" in sglang_says(model_quantization_param_path=str(tmp_path / "absent")).unknown


def test_scales_in_the_checkpoint_are_part_of_the_weights(sglang_says: Says, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path)
    before = sglang_says(model_model_path=str(path)).weights
    edit_tensor(path, "model.layers.2.self_attn.k_scale", b"\0\0\0\x40")
    assert sglang_says(model_model_path=str(path)).weights != before


@pytest.mark.parametrize(
    ("file", "said", "meant"),
    [
        (
            "config.json",
            {"quantization_config": {"quant_method": "fp8", "kv_cache_quant_algo": "FP8"}},
            "fp8_e4m3",
        ),
        (
            "config.json",
            {"quantization_config": {"kv_cache_scheme": {"type": "float", "num_bits": 8}}},
            "fp8_e4m3",
        ),
        ("config.json", {"text_config": {"quantization_config": {"kv_cache_quant_algo": "fp8"}}}, "fp8_e4m3"),
        ("hf_quant_config.json", {"quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8_e4m3"),
        ("config.json", {"quantization_config": {"quant_method": "fp8"}}, ""),
        ("config.json", {"quantization_config": {"kv_cache_scheme": {"type": "int", "num_bits": 8}}}, ""),
        ("config.json", {"quantization_config": "fp8"}, ""),
        ("config.json", ["no object"], ""),
    ],
)
def test_the_checkpoint_says_what_auto_makes_of_its_kv_cache(
    sglang_says: Says, tmp_path: Path, file: str, said: Any, meant: str
) -> None:
    path = write_checkpoint(tmp_path)
    (path / file).write_text(json.dumps(said))
    for told in ("auto", None):
        assert sglang_says(model_model_path=str(path), model_kv_cache_dtype=told).kv_cache_dtype == meant
    assert (
        sglang_says(model_model_path=str(path), model_kv_cache_dtype="fp8_e5m2").kv_cache_dtype == "fp8_e5m2"
    )


@pytest.mark.parametrize(
    ("native", "meant"), [("float8_e4m3fnuz", "fp8_e4m3fnuz"), ("float8_e4m3fn", "fp8_e4m3")]
)
@pytest.mark.parametrize("told", ["fp8_e4m3", "fp8_e5m2"])
def test_on_hip_every_fp8_is_the_one_of_the_hardware(
    sglang_says: Says, monkeypatch: pytest.MonkeyPatch, told: str, native: str, meant: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(hip="6.4")))  # type: ignore[arg-type]
    kernels = ModuleType("fp8_kernel")
    assert sglang_says(model_kv_cache_dtype=told).kv_cache_dtype == "", "unknown hardware"
    kernels.fp8_dtype = f"torch.{native}"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, model_facts._FP8_KERNELS[0], kernels)
    assert sglang_says(model_kv_cache_dtype=told).kv_cache_dtype == meant
    assert sglang_says(model_kv_cache_dtype="mxfp8").kv_cache_dtype == "mxfp8/hip"


def test_equal_drafts_under_other_paths_are_one_and_others_are_not(sglang_says: Says, tmp_path: Path) -> None:
    def draft(name: str, seed: int, **more: str) -> str:
        path = write_checkpoint(tmp_path / name, seed)
        return sglang_says(spec_speculative_draft_model_path=str(path), **more).draft_model

    assert draft("a", 1) == draft("b", 1) != draft("c", 2)
    assert draft("a", 1, spec_speculative_draft_model_quantization="fp8") != draft("b", 1)
    assert draft("a", 1, spec_speculative_draft_load_format="dummy") != draft("b", 1)
    assert draft("a", 1, model_load_format="dummy") != draft("b", 1), "the target's format is the draft's"


def test_a_draft_that_is_not_on_this_host_needs_a_revision(sglang_says: Says) -> None:
    path = "acme/draft-that-no-hub-has"
    assert "draft_model" in sglang_says(spec_speculative_draft_model_path=path).unknown
    named = sglang_says(spec_speculative_draft_model_path=path, spec_speculative_draft_model_revision="2")
    assert (named.draft_model, dict(named.unknown)) == (f"{path}@2", {})


def test_a_drafts_own_kind_of_kv_cache_is_told(sglang_says: Says) -> None:
    facts = sglang_says(model_kv_cache_dtype="fp8_e4m3", spec_speculative_draft_kv_cache_dtype="fp8_e5m2")
    assert (facts.kv_cache_dtype, facts.of_draft().kv_cache_dtype) == ("fp8_e4m3", "fp8_e5m2")
    assert sglang_says(model_kv_cache_dtype="fp8_e4m3").of_draft().kv_cache_dtype == "fp8_e4m3"


@pytest.mark.parametrize("form", ["strings", "mappings", "references", "one mapping"])
def test_adapters_are_told_by_name_and_content_whatever_sglang_keeps_them_in(
    sglang_says: Says, tmp_path: Path, form: str
) -> None:
    forms: dict[str, Callable[[dict[str, str]], Any]] = {
        "strings": lambda paths: [f"{name}={path}" for name, path in paths.items()],
        "mappings": lambda paths: [{"lora_name": name, "lora_path": path} for name, path in paths.items()],
        "references": lambda paths: [
            SimpleNamespace(lora_name=name, lora_path=path) for name, path in paths.items()
        ],
        "one mapping": dict,
    }

    def adapters(paths: dict[str, Path], on: bool | None = True) -> str:
        texts = {name: str(path) for name, path in paths.items()}
        return sglang_says(lora_enable_lora=on, lora_lora_paths=forms[form](texts)).adapters

    a, b, same = (write_checkpoint(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 2), ("same", 1)))
    told = adapters({"x": a, "y": b})
    assert told
    assert adapters({"y": b, "x": same}) == told
    assert len({told, adapters({"x": a}), adapters({"x": b, "y": a}), adapters({"x": b})}) == 4
    edit_tensor(a, "model.embed_tokens.weight", (b / "config.json").read_bytes().ljust(20_000))
    assert adapters({"x": a, "y": b}) != told, "trained anew in its place"
    assert adapters({"x": a}, on=False) == "", "LoRA is off"
    assert adapters({}) == ""


@pytest.mark.parametrize(
    ("enabled", "paths", "on"),
    [(True, None, True), (None, ["a=b"], True), (None, None, False), (False, ["a=b"], False)],
)
def test_lora_is_on_as_sglang_decides_it(
    sglang_says: Says, enabled: bool | None, paths: list[str] | None, on: bool
) -> None:
    sglang_says(lora_enable_lora=enabled, lora_lora_paths=paths)
    assert lora_is_on() == on


def test_weights_quantized_while_loading_are_others(sglang_says: Says) -> None:
    assert sglang_says(model_quantization="fp8").quantization == "fp8"
    assert sglang_says(model_quantization="fp8", model_torchao_config="").quantization == "fp8"
    assert sglang_says(model_torchao_config="int8wo").quantization == "torchao_config=int8wo"


def test_a_repository_is_looked_for_in_the_hubs_cache_and_never_on_the_network(
    sglang_says: Says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = write_checkpoint(tmp_path / "snapshot")
    asked: list[dict[str, Any]] = []
    hub = ModuleType("huggingface_hub")

    def snapshot_download(repository: str, **how: Any) -> str:
        asked.append(how | {"repository": repository})
        return str(snapshot)

    hub.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    facts = sglang_says(model_model_path="acme/model", model_revision="main", model_download_dir="/cache")
    assert facts.weights == weights_fingerprint(snapshot)
    assert facts.revision == "main"
    assert asked[0] == {
        "repository": "acme/model",
        "revision": "main",
        "cache_dir": "/cache",
        "local_files_only": True,
    }


def test_a_checkpoint_that_can_not_be_located_says_so() -> None:
    with pytest.raises(UnknownWeightsError, match="acme/none-such"):
        Checkpoint("acme/none-such").located()
