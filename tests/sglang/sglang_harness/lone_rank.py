"""The adapter of one rank on SGLang's real host pool, without a controller: for ranks of process groups that one process
can't be in, and for many of them.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.runtime_context import get_context

from hicache_adapter.backend import KVStoreHiCache
from sglang_harness.case import Case
from sglang_harness.engine import kv_host_pool
from sglang_harness.pool_pages import fill_pages, page_bytes, wipe_pool


@dataclass(frozen=True)
class Place:
    """One rank of an engine."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    cp_rank: int = 0
    cp_size: int = 1


@dataclass(frozen=True)
class Model:
    """A whole model; what a rank holds of it follows from its place."""

    name: str = "acme/model"
    kind: str = "mha"  # or mla
    layers: int = 4
    heads: int = 8
    options: dict[str, Any] = field(default_factory=dict)

    def case(self, place: Place, **changes: Any) -> Case:
        """The rank's share."""
        layers = self.layers // place.pp_size
        case = Case(
            kind=self.kind,
            model_name=self.name,
            layers=layers,
            first_layer=place.pp_rank * layers,
            heads=self.heads // place.tp_size,
            pages=2,
            head_dim=8,
            options=self.options,
        )
        return replace(case, **changes)


class LoneRank:
    """A context manager. Host pool and adapter live as long. `settings`: options of SGLang's that the engine was given."""

    def __init__(
        self, model: Model, place: Place, settings: dict[str, Any] | None = None, **changes: Any
    ) -> None:
        self._stack = ExitStack()
        if settings is not None:
            self._stack.enter_context(get_context().override_server_args(**settings))
        self.case = case = model.case(place, **changes)
        self.pool = kv_host_pool(case)
        self.config = HiCacheStorageConfig(
            tp_rank=place.tp_rank,
            tp_size=place.tp_size,
            pp_rank=place.pp_rank,
            pp_size=place.pp_size,
            attn_cp_rank=place.cp_rank,
            attn_cp_size=place.cp_size,
            is_mla_model=case.kind == "mla",
            enable_storage_metrics=False,
            is_page_first_layout=case.layout == "page_first",
            model_name=case.model_name,
            extra_config=case.extra_config,
        )
        self.backend = KVStoreHiCache(self.config, {})
        self._stack.callback(self.backend.close)
        self.backend.register_mem_pool_host(self.pool)
        self.slots = self.pool.alloc(case.pages * case.page_size)

    def __enter__(self) -> LoneRank:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, keys: list[str], seed: int) -> list[bytes]:
        """Backs pages of these bytes up, if SGLang has this rank write at all; the bytes."""
        fill_pages(self.pool, self.slots, seed)
        if self.config.is_storage_writer:
            assert self.backend.batch_set_v1(keys, self.slots) == [True] * len(keys)
        return page_bytes(self.pool, self.slots)

    def read(self, keys: list[str]) -> list[bytes] | None:
        """Loads the pages; None when they are not all there."""
        wipe_pool(self.pool)
        if self.backend.batch_exists(keys) != len(keys):
            assert not all(self.backend.batch_get_v1(keys, self.slots)), "get finds what exists does not"
            return None
        assert self.backend.batch_get_v1(keys, self.slots) == [True] * len(keys)
        return page_bytes(self.pool, self.slots)
