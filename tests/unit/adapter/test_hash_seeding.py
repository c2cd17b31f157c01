"""SGLang versions whose page hashes leave out the LoRA adapter and the cache salt."""

from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest

from hicache_adapter.hash_seeding import adapters_share_pages, hashes_are_seeded, warn_of_shared_salts

LORA_ON = SimpleNamespace(enable_lora=True, lora_paths=[])
LORA_OFF = SimpleNamespace(enable_lora=None, lora_paths=None)


def run_sglang(monkeypatch: pytest.MonkeyPatch, *, seeds: bool, lora: SimpleNamespace = LORA_OFF) -> None:
    """As 0.5.20 and newer do it, or as 0.5.18 and older."""
    utils, context = ModuleType("utils"), ModuleType("context")
    if seeds:
        utils.storage_namespace_seed = lambda extra_key, cache_salt: "00" * 32  # type: ignore[attr-defined]
    context.get_lora = lambda: lora  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang.srt.mem_cache.utils", utils)
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)


@pytest.mark.parametrize("seeds", [False, True])
@pytest.mark.parametrize("lora", [LORA_ON, LORA_OFF], ids=["lora", "no lora"])
def test_adapters_share_pages_where_lora_is_on_and_hashes_are_not_seeded(
    monkeypatch: pytest.MonkeyPatch, seeds: bool, lora: SimpleNamespace
) -> None:
    run_sglang(monkeypatch, seeds=seeds, lora=lora)
    assert hashes_are_seeded() == seeds
    reason = adapters_share_pages()
    assert (reason is not None) == (lora is LORA_ON and not seeds)
    if reason is not None:
        assert "0.5.20" in reason


def test_older_settings_say_that_lora_is_on_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run_sglang(monkeypatch, seeds=False)
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", ModuleType("without getters"))
    args = ModuleType("server_args")
    args.get_global_server_args = lambda: LORA_ON  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang.srt.server_args", args)
    assert adapters_share_pages() is not None


@pytest.mark.parametrize("seeds", [False, True])
def test_one_line_says_that_salts_do_not_keep_pages_apart(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seeds: bool
) -> None:
    run_sglang(monkeypatch, seeds=seeds)
    with caplog.at_level(logging.WARNING, "hicache_adapter"):
        warn_of_shared_salts()
    assert [("cache_salt" in line, "0.5.20" in line) for line in caplog.messages] == (
        [] if seeds else [(True, True)]
    )


def test_an_sglang_that_can_not_be_asked_counts_as_one_that_does_not_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sglang.srt.mem_cache.utils", None)  # type: ignore[arg-type]
    assert not hashes_are_seeded()
