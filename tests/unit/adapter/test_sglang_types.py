"""SGLang's own types, wherever a version keeps them: here with versions that are modules made by the test."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hicache_adapter import sglang_types
from hicache_adapter.hit_policy import HitReport
from hicache_adapter.rank_coordinates import RankCoordinates

METRICS_MODULES = ("sglang.srt.metrics.collector", "sglang.srt.observability.metrics_collector")
STORAGE_MODULE = "sglang.srt.mem_cache.hicache_storage"


class Finder(importlib.abc.MetaPathFinder):
    """Says of every module of SGLang's that it isn't there, and counts."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "sglang":
            self.asked.append(name)
            raise ModuleNotFoundError(name)


@pytest.fixture
def finder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Finder]:
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    absent = Finder()
    monkeypatch.setattr(sys, "meta_path", [absent, *sys.meta_path])
    sglang_types._type_of.cache_clear()
    yield absent
    sglang_types._type_of.cache_clear()


def add_module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: object) -> None:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:end]))
        module.__path__ = []
        monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(contents)


class StorageMetrics:
    pass


@pytest.mark.parametrize("module", METRICS_MODULES)
def test_storage_metrics_are_found_in_either_place(
    finder: Finder, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    add_module(monkeypatch, module, StorageMetrics=StorageMetrics)
    first, second = sglang_types.new_storage_metrics(), sglang_types.new_storage_metrics()
    assert type(first) is type(second) is StorageMetrics and first is not second


def test_storage_metrics_that_are_nowhere_are_looked_for_once(finder: Finder) -> None:
    assert sglang_types.new_storage_metrics() is None
    asked = len(finder.asked)
    assert asked > 0
    for _ in range(3):
        assert sglang_types.new_storage_metrics() is None
    assert len(finder.asked) == asked


def test_storage_metrics_that_can_not_be_made_are_none(
    finder: Finder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Needing:
        def __init__(self, something: int) -> None:
            raise AssertionError

    add_module(monkeypatch, METRICS_MODULES[0], StorageMetrics=Needing)
    assert sglang_types.new_storage_metrics() is None


class Result:
    """Of 0.5.13 to 0.5.18."""

    def __init__(self, kv_hit_pages: int, extra_pool_hit_pages: dict[str, int]) -> None:
        self.kv_hit_pages = kv_hit_pages
        self.extra_pool_hit_pages = extra_pool_hit_pages


class NewerResult(Result):
    """Of 0.5.20 and newer."""

    restorable_prefix_pages: list[int] | None = None


def test_a_hit_has_the_fields_that_the_versions_result_has(
    finder: Finder, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = HitReport(3, {"swa": 3}, [1, 3])
    assert sglang_types.pool_transfer_result(report) is report  # 0.5.9 and older have none, and never ask
    for result_type in (Result, NewerResult):
        sglang_types._type_of.cache_clear()
        add_module(monkeypatch, STORAGE_MODULE, PoolTransferResult=result_type)
        result = sglang_types.pool_transfer_result(report)
        assert type(result) is result_type
        assert (result.kv_hit_pages, result.extra_pool_hit_pages) == (3, {"swa": 3})
        assert getattr(result, "restorable_prefix_pages", None) == (
            [1, 3] if result_type is NewerResult else None
        )


def test_of_a_group_of_pools_the_one_with_the_kv_pages_is_taken() -> None:
    pool = SimpleNamespace(layout="page_first")
    group = SimpleNamespace(layout="page_first", anchor_entry=SimpleNamespace(host_pool=pool))
    assert sglang_types.anchor_pool(group) is pool
    assert sglang_types.anchor_pool(pool) is pool


def test_metrics_are_kept_where_sglang_does_not_say_whether_they_are_on() -> None:
    old = SimpleNamespace(tp_rank=0, tp_size=1, is_mla_model=False, model_name="m", extra_config={})
    assert RankCoordinates.of(old).enable_storage_metrics
    for told in (True, False):
        new = SimpleNamespace(**vars(old), enable_storage_metrics=told)
        assert RankCoordinates.of(new).enable_storage_metrics is told
