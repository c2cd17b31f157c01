"""What of a checkpoint its fingerprint sees, and what it costs."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_adapter import weights_fingerprint as module
from hicache_adapter.weights_fingerprint import UnknownWeightsError, content_fingerprint, weights_fingerprint
from support.checkpoints import edit_tensor, tensors, write_checkpoint, write_safetensors


def test_the_same_files_on_another_host_have_the_same_fingerprint(tmp_path: Path) -> None:
    here = write_checkpoint(tmp_path / "models" / "acme")
    there = tmp_path / "cache" / "snapshots" / "0123"
    there.mkdir(parents=True)
    for file in here.iterdir():  # as a model hub's cache holds them
        blob = tmp_path / f"blob of {file.name}"
        shutil.copyfile(file, blob)
        os.utime(blob, (1, 1))
        (there / file.name).symlink_to(blob)
    (there / "README.md").write_text("of no account")
    assert weights_fingerprint(here) == weights_fingerprint(there)
    assert len(weights_fingerprint(here)) == 32


CHANGES: dict[str, Callable[[Path], object]] = {
    "other weights": lambda at: write_checkpoint(at, seed=2),
    "another config": lambda at: write_checkpoint(at, config={"rope_theta": 1e6}),
    "one kind of tensor trained": lambda at: [
        edit_tensor(
            at, f"model.layers.{layer}.self_attn.q_proj.weight", tensors(2)["model.embed_tokens.weight"]
        )
        for layer in range(3)
    ],
    "one KV scale": lambda at: edit_tensor(at, "model.layers.1.self_attn.k_scale", b"\0\0\0\x40"),
    "a renamed file": lambda at: (at / "model-00002-of-00002.safetensors").rename(
        at / "model-00003.safetensors"
    ),
    "an fp8 KV cache declared": lambda at: (at / "hf_quant_config.json").write_text(
        '{"quantization": {"kv_cache_quant_algo": "FP8"}}'
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_was_exchanged_under_the_same_name_has_another_fingerprint(tmp_path: Path, what: str) -> None:
    before = weights_fingerprint(write_checkpoint(tmp_path / "model"))
    sizes = sorted(file.stat().st_size for file in (tmp_path / "model").glob("*.safetensors"))
    CHANGES[what](tmp_path / "model")
    assert sorted(file.stat().st_size for file in (tmp_path / "model").glob("*.safetensors")) == sizes
    assert weights_fingerprint(tmp_path / "model") != before


def test_files_beside_the_ones_that_the_index_names_are_of_no_account(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model")
    before = weights_fingerprint(model)
    write_safetensors(model / "consolidated.safetensors", tensors(3))
    (model / "pytorch_model.bin").write_bytes(b"an older form")
    assert weights_fingerprint(model) == before


@pytest.mark.parametrize("suffix", ["bin", "pt", "gguf"])
def test_weights_in_files_of_other_forms_are_told_apart(tmp_path: Path, suffix: str) -> None:
    told = set()
    for at in (None, 0, 999_999):
        content = bytearray(1_000_000)
        if at is not None:
            content[at] = 1
        (tmp_path / f"weights.{suffix}").write_bytes(content)
        told.add(weights_fingerprint(tmp_path))
    assert len(told) == 3


def test_a_single_file_is_told_by_its_content_whatever_it_is_called(tmp_path: Path) -> None:
    for name, content in (("a.gguf", b"GGUF1"), ("b.gguf", b"GGUF1"), ("c.gguf", b"GGUF2")):
        (tmp_path / name).write_bytes(content)
    a, b, c = (weights_fingerprint(tmp_path / name) for name in ("a.gguf", "b.gguf", "c.gguf"))
    assert a == b != c


def test_all_parts_of_a_divided_file_count(tmp_path: Path) -> None:
    first, second = (tmp_path / f"model-0000{part}-of-00002.gguf" for part in (1, 2))
    first.write_bytes(b"1")
    second.write_bytes(b"2")
    before = weights_fingerprint(first)
    second.write_bytes(b"3")
    assert weights_fingerprint(first) != before


def test_a_checkpoint_of_many_experts_takes_a_bounded_number_of_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks: list[int] = []
    pread = os.pread

    def counted(file: int, size_bytes: int, offset: int) -> bytes:
        blocks.append(size_bytes)
        return pread(file, size_bytes, offset)

    monkeypatch.setattr(os, "pread", counted)
    kinds = ("down", "up")
    experts = {f"layers.{n % 60}.experts.{n}.{kinds[n % 2]}": b"%d" % n for n in range(10_000)}
    scales = {f"layers.{n}.k_scale": b"%d" % n for n in range(100)}
    write_safetensors(tmp_path / "model.safetensors", experts | scales)
    before = weights_fingerprint(tmp_path)
    assert 1500 < len(blocks) <= module.READS_MAX
    assert max(blocks) <= module.BLOCK_BYTES
    kinds_of_few_tensors = [f"layers.{n}.k_scale" for n in (0, 63, 99)]  # are read in whole
    trained = [{name: b"x" * len(scales[name])} for name in kinds_of_few_tensors]
    trained += [
        {name: b"x" * len(old) for name, old in experts.items() if name.endswith(kind)} for kind in kinds
    ]
    for changed in trained:
        write_safetensors(tmp_path / "model.safetensors", experts | scales | changed)
        assert weights_fingerprint(tmp_path) != before, f"{len(changed)} of {next(iter(changed))}"


def test_a_file_system_that_hangs_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_checkpoint(tmp_path / "model")
    released = threading.Event()
    monkeypatch.setattr(os, "pread", lambda *of: released.wait(30) and b"")
    monkeypatch.setattr(module, "DEADLINE_S", 0.2)
    try:
        with pytest.raises(UnknownWeightsError, match="takes longer than"):
            weights_fingerprint(model)
    finally:
        released.set()


BROKEN: dict[str, Callable[[Path], object]] = {
    "nothing there": lambda at: at,
    "no file of weights": lambda at: (at / "config.json").write_text("{}"),
    "a header without end": lambda at: (at / "a.safetensors").write_bytes(b"\xff" * 16),
    "a header that is no JSON": lambda at: (at / "a.safetensors").write_bytes(
        (4).to_bytes(8, "little") + b"nono"
    ),
    "a header of another form": lambda at: (at / "a.safetensors").write_bytes(
        (2).to_bytes(8, "little") + b"[]"
    ),
    "a tensor outside of the file": lambda at: (at / "a.safetensors").write_bytes(
        (len(header := json.dumps({"a": {"data_offsets": [0, 99]}}).encode())).to_bytes(8, "little") + header
    ),
    "a tensor without a place": lambda at: (at / "a.safetensors").write_bytes(
        (7).to_bytes(8, "little") + b'{"a":1}'
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_checkpoint_is_unknown_with_the_reason(tmp_path: Path, what: str) -> None:
    BROKEN[what](tmp_path)
    with pytest.raises(UnknownWeightsError, match=str(tmp_path)):
        weights_fingerprint(tmp_path / "absent" if what == "nothing there" else tmp_path)


def test_a_small_file_is_told_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "scales.json").write_text("1")
    before = content_fingerprint(tmp_path / "scales.json")
    (tmp_path / "scales.json").write_text("2")
    assert content_fingerprint(tmp_path / "scales.json") != before
    with pytest.raises(UnknownWeightsError, match="can't be read"):
        content_fingerprint(tmp_path / "absent")
