"""The class that SGLang builds: its storage interface on top of the client. Imported only where SGLang
is installed.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, TypeVar

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from hicache_adapter.activity_log import ActivityLog
from hicache_adapter.batches import page_by_page_where_one_is_bad
from hicache_adapter.byte_order import CANONICAL
from hicache_adapter.canonical_plan import new_plan
from hicache_adapter.chain_depths import ChainDepths
from hicache_adapter.config import AdapterConfig
from hicache_adapter.deadlines import Deadline, Deadlines
from hicache_adapter.hash_seeding import adapters_share_pages, warn_of_shared_salts
from hicache_adapter.hit_policy import HitReport
from hicache_adapter.kv_hints import NO_WISH, wish_of
from hicache_adapter.kv_pool_share import kv_pool_share, lies_in_side_pools
from hicache_adapter.model_facts import read_model_facts
from hicache_adapter.page_identity import UnusableRankError, is_replicated
from hicache_adapter.page_store import PageStore
from hicache_adapter.pool_plan import PoolPlan
from hicache_adapter.pool_share import PoolShare
from hicache_adapter.rank_coordinates import RankCoordinates
from hicache_adapter.recorder import Recorder
from hicache_adapter.sglang_types import (
    KV_POOL,
    anchor_pool,
    new_storage_metrics,
    pool_name,
    pool_transfer_result,
)
from hicache_adapter.side_pools import SidePools
from hicache_adapter.warm_up import warm_up
from hicache_adapter.weight_versions import VersionedStore, WeightVersions
from kvstore_client import Client, ConfigError, Identity
from kvstore_client.signal_handlers import is_from_signal_handler
from kvstore_client.throttle import ThrottledLog

logger = logging.getLogger("hicache_adapter")

T = TypeVar("T")


class KVStoreHiCache(HiCacheStorage):  # type: ignore[misc]  # SGLang is untyped
    """kvstore as SGLang's HiCache storage (`--hicache-storage-backend dynamic`).

    The constructor and `register_mem_pool_host` raise ConfigError for settings that can't work, alike on
    every rank and without having connected to anything. Nothing else raises, ever: an unreachable store
    answers as an empty one, every call ends within its time (deadlines.py), and no memory of SGLang's is
    written after a call has returned. SGLang calls from several threads at once.
    """

    def __init__(self, storage_config: Any, kwargs: dict[str, Any] | None = None, **_: Any) -> None:
        self.storage_config = storage_config
        self.config = AdapterConfig.from_extra_config(getattr(storage_config, "extra_config", None))
        self.rank = RankCoordinates.of(storage_config)
        if self.rank.dcp_size > 1:
            raise ConfigError(
                "dcp-size", "decode context parallelism is not supported; serve this model without it"
            )
        self.registered_pools: dict[Any, Any] = {}
        self.mem_pool_host: Any = None
        self._client = Client.from_config(self.config.client_config(f"sglang {self.rank}"))
        self._log = ThrottledLog(logger)
        self._recorder = Recorder()
        self._activity = ActivityLog(f"sglang {self.rank}", self.counters)
        self._deadlines = Deadlines(self.config)
        self._depths = ChainDepths()
        self._weights = WeightVersions(self._log)
        self._facts = cache(read_model_facts)
        self._side_pools = SidePools(
            self._client, self.rank, self.config, self._recorder, self._weights, self._facts, self._log
        )
        self._lock = threading.Lock()
        self._plan: PoolPlan | None = None
        self._stores: dict[bool, VersionedStore] = {}  # flat pages? -> its stores
        self._refusal: str | None = "no host pool is registered yet"
        self._kv_in_side_pools = False
        self._bad_get = partial(self._log_failure, "get")
        self._bad_set = partial(self._log_failure, "set")
        self._has_metrics = self.rank.enable_storage_metrics
        self._closed = False

    # ---- attach and detach (scheduler's main thread) ----

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Learns where the pages lie and what they are. ConfigError when that can't be told."""
        self.mem_pool_host = mem_pool_host = anchor_pool(mem_pool_host)
        self._stores, self._refusal = {}, None
        self._kv_in_side_pools = lies_in_side_pools(mem_pool_host)
        if self._kv_in_side_pools:
            return  # each side pool announces itself
        if getattr(mem_pool_host, "kv_buffer", None) is None:
            self._refuse(f"host pool {type(mem_pool_host).__name__} has no memory of its own")
            return
        if (reason := adapters_share_pages()) is not None:
            self._refuse(reason)
            return
        try:
            plan = new_plan(mem_pool_host, self._share(flat_pages=False))
            store = self._store(flat_pages=False)
        except UnusableRankError as error:
            self._refuse(str(error))
            return
        except (AttributeError, TypeError) as error:
            self._refuse(
                f"host pool {type(mem_pool_host).__name__} has another form than in the SGLang versions that are "
                f"known: {error}"
            )
            return
        if self._plan is not None:
            self._plan.take_back_from(self._client)
        self._plan = plan
        plan.lend_to(self._client)
        self._recorder.watch(KV_POOL)
        self._warn_of_idle_lcm(mem_pool_host)
        warn_of_shared_salts()
        self._announce(store, plan)
        warm_up(lambda: store.exists(["0" * 64], self._deadlines.short()))

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Takes a side pool. One that can't be identified turns the backend off, so that no model is ever
        served from half of its state. Does not raise: SGLang would not roll back what it has attached.
        """
        self.registered_pools[host_pool_name] = host_pool
        name = pool_name(host_pool_name)
        if name == KV_POOL or self._refusal is not None:
            return
        try:
            pool = self._side_pools.register(name, host_pool)
        except Exception as error:
            self._refuse(f"side pool '{name}': {error}; KV pages without it are of no use")
            return
        self._announce(pool.stores.of(self._weights.current()), pool.plan)

    def on_host_pools_registered(self) -> None:
        """Nothing is left to do: pools are taken one by one."""

    def clear(self) -> None:
        """Makes everything stored under this model's identity, with the weights that are served now,
        unreachable for all instances, in constant time.
        """

        def clear_each() -> None:
            deadline = self._deadlines.short()
            stores = self._side_pools.stores(self._weights.current())
            if not self._kv_in_side_pools:
                stores.insert(0, self._store(not self.config.interface_v1))
            for store in stores:
                store.clear(deadline)

        self._guard("clear", None, clear_each)

    def close(self) -> None:
        """Ends connections and threads and lets SGLang's memory go. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            if self._plan is not None:
                self._plan.take_back_from(self._client)
            self._side_pools.close()
            self._client.close()
        except Exception:
            logger.exception("kvstore: closing failed")
        self._plan, self._stores, self.mem_pool_host = None, {}, None
        self.registered_pools = {}

    def get_stats(self) -> Any:
        """The samples since the last call as StorageMetrics, or None when metrics are off."""
        self._guard("look at the weights", None, self._weights.look)
        metrics = new_storage_metrics() if self._has_metrics else None
        self._has_metrics = (
            metrics is not None
        )  # looking for what isn't there is slow, and the scheduler asks often
        return None if metrics is None else self._recorder.drain_into(metrics)

    # ---- pages in the pool: interface v1 (storage threads) ----

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """How many pages from the first on are stored completely; what is promised stays for `pin_ms`."""

        def ask(version: str) -> int:
            return self._exists(keys, extra_info, self._deadlines.query(), version)

        return self._of_pages("exists", 0, ask)

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Fills the pages; one truth a key. host_indices: int64, page_size slots a key."""

        def load(version: str) -> list[bool]:
            return self._get(keys, host_indices, version, flat_pages=False)

        return self._of_pages("get", _misses(keys), load)

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Stores the pages that are absent; one truth a key. host_indices as in batch_get_v1."""

        def save(version: str) -> list[bool]:
            return self._set(keys, host_indices, extra_info, version, flat_pages=False)

        return self._of_pages("set", _misses(keys), save)

    # ---- flat pages: interface v0 ----

    def batch_get(
        self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[Any]:
        """Fills flat page tensors; each is returned where its page was found, None elsewhere."""

        def load(version: str) -> list[Any]:
            targets = (
                list(target_locations) if target_locations is not None else self._new_flat_pages(len(keys))
            )
            found = self._get(keys, targets, version, flat_pages=True)
            return [target if ok else None for target, ok in zip(targets, found, strict=True)]

        return self._of_pages("get", [None] * _count(keys), load)

    def batch_set(
        self, keys: Sequence[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Stores flat page tensors. True only if all of them are stored now."""

        def save(version: str) -> bool:
            pages = list(values if values is not None else target_locations)
            return all(self._set(keys, pages, None, version, flat_pages=True))

        return self._of_pages("set", False, save)

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """One flat page into `target_location` (or a new tensor); None on a miss."""
        return self.batch_get([key], None if target_location is None else [target_location])[0]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Stores one flat page."""
        return self.batch_set([key], [value if value is not None else target_location])

    def exists(self, key: str) -> bool:
        """Whether the page is stored completely."""
        return self.batch_exists([key]) == 1

    # ---- side pools: interface v2 ----

    def batch_exists_v2(self, keys: Sequence[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """Which prefixes can be restored, by the rules of all the pools that are named: SGLang's
        PoolTransferResult.
        """

        def ask(version: str) -> HitReport:
            deadline = self._deadlines.short()
            side_pools_decide = self._kv_in_side_pools and pool_transfers
            kv_pages = len(keys) if side_pools_decide else self._exists(keys, extra_info, deadline, version)
            return self._side_pools.hits(keys, kv_pages, pool_transfers or (), deadline, version)

        return pool_transfer_result(self._of_pages("exists", HitReport(0, {}, []), ask))

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """Fills the pages of side pools; for each pool's name one truth a key."""

        def load(version: str) -> dict[Any, list[bool]]:
            return self._side_pools.get(transfers or (), self._deadline_of(transfers or ()), version)

        return self._of_pages("get", _transfer_misses(transfers), load)

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """Stores the pages of side pools that are absent; for each pool's name one truth a key."""

        def save(version: str) -> dict[Any, list[bool]]:
            depth = self._depths.of(transfers[0].keys or (), extra_info) if transfers else 0
            deadline, wish = self._deadline_of(transfers or ()), wish_of(extra_info, self._complain_of_hints)
            return self._side_pools.put(transfers or (), depth, deadline, version, wish)

        return self._of_pages("set", _transfer_misses(transfers), save)

    # ---- for people ----

    def counters(self) -> dict[str, Any]:
        """The client's counters and troubles, and those of each pool (`kv_pages_loaded`, `swa_pages_missed`, ...)."""
        return {**self._client.stats(), **self._recorder.counters()}

    # ---- inside ----

    def _deadline_of(self, transfers: Sequence[Any]) -> Deadline:
        return self._deadlines.carrying(self._side_pools.carried_bytes(transfers))

    def _exists(self, keys: Sequence[str], extra_info: Any, deadline: Deadline, version: str) -> int:
        if self._kv_in_side_pools:
            return 0  # nothing is known of a page unless side pools are asked
        self._depths.asked(keys, extra_info)
        # What is wished for costs a request of its own, which the scheduler does not wait for.
        wish = NO_WISH if self._deadlines.on_scheduler else wish_of(extra_info, self._complain_of_hints)
        found = self._store(not self.config.interface_v1, version).exists(keys, deadline, wish)
        self._recorder.asked(KV_POOL, len(keys), found)
        return found

    def _complain_of_hints(self, why: str) -> None:
        self._log.log(logging.WARNING, "kv_hints", "kvstore: kv_hints are not followed: %s", why)

    def _get(self, keys: Sequence[str], where: Any, version: str, *, flat_pages: bool) -> list[bool]:
        if self._kv_in_side_pools:
            return [True] * len(keys)
        started, store, plan = time.perf_counter(), self._store(flat_pages, version), self._plan
        if plan is None:
            raise ValueError("no host pool is registered")
        deadline = self._deadlines.carrying(len(keys) * plan.page_bytes)

        def get(keys: Sequence[str], where: Any, at: int) -> list[bool]:
            memory = plan.flat_memory(where) if flat_pages else plan.memory(len(keys), where)
            return store.get(keys, memory, deadline)

        items_a_page = 1 if flat_pages else plan.page_size
        found = page_by_page_where_one_is_bad(keys, where, items_a_page, get, self._bad_get)
        self._recorder.loaded(KV_POOL, found, plan.page_bytes, time.perf_counter() - started)
        return found

    def _set(
        self, keys: Sequence[str], where: Any, extra_info: Any, version: str, *, flat_pages: bool
    ) -> list[bool]:
        if self._kv_in_side_pools:
            return [True] * len(keys)
        started = time.perf_counter()
        if not self._weights.may_store(version):
            return _misses(keys)
        store, plan = self._store(flat_pages, version), self._plan
        if plan is None:
            raise ValueError("no host pool is registered")
        deadline = self._deadlines.carrying(len(keys) * plan.page_bytes)
        depth, wish = self._depths.of(keys, extra_info), wish_of(extra_info, self._complain_of_hints)

        def put(keys: Sequence[str], where: Any, at: int) -> list[bool]:
            memory = plan.flat_memory(where) if flat_pages else plan.memory(len(keys), where)
            return store.put(keys, memory, depth + at, deadline, wish)

        items_a_page = 1 if flat_pages else plan.page_size
        stored = page_by_page_where_one_is_bad(keys, where, items_a_page, put, self._bad_set)
        self._recorder.stored(KV_POOL, stored, plan.page_bytes, time.perf_counter() - started)
        return stored

    def _store(self, flat_pages: bool, version: str | None = None) -> PageStore:
        """Of the weights of that version; None: of those that are served now."""
        stores = self._stores.get(flat_pages)
        if stores is None:
            with self._lock:
                stores = self._stores.get(flat_pages)
                if stores is None:
                    stores = self._stores[flat_pages] = self._versioned_store(flat_pages)
        return stores.of(self._weights.current() if version is None else version)

    def _versioned_store(self, flat_pages: bool) -> VersionedStore:
        share = self._share(flat_pages)

        def make(identity: Identity) -> PageStore:
            return PageStore(self._client, identity, share.shards, self._log)

        return VersionedStore(share.identity, make)

    def _share(self, flat_pages: bool) -> PoolShare:
        """What this rank holds of the KV pool's pages."""
        return kv_pool_share(self.rank, self.mem_pool_host, self.config, self._facts(), flat_pages=flat_pages)

    def _new_flat_pages(self, count: int) -> list[Any]:
        return [self.mem_pool_host.get_dummy_flat_data_page() for _ in range(count)]

    def _guard(self, verb: str, miss: T, call: Callable[[], T]) -> T:
        """What `call` answers, or `miss` when the backend is off or anything goes wrong."""
        return self._of_pages(verb, miss, lambda version: call(), needs_version=False)

    def _of_pages(self, verb: str, miss: T, call: Callable[[str], T], *, needs_version: bool = True) -> T:
        """The same for a call that is about pages, with the version of the weights that they are of. `miss` where that
        can't be told.
        """
        if self._closed or self._refusal is not None:
            return miss
        try:
            version = self._weights.named() if needs_version else ""
            return miss if version is None else call(version)
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            self._log_failure(verb, error)
            return miss
        finally:
            if self._activity.is_due():
                self._speak_of_activity()

    def _speak_of_activity(self) -> None:
        try:
            self._activity.speak()
        except Exception as error:
            self._log_failure("activity log", error)

    def _log_failure(self, verb: str, error: Exception) -> None:
        topic = f"{verb} {type(error).__name__}"
        self._log.log(logging.ERROR, topic, "kvstore: %s failed: %s", verb, error, exc_info=error)

    def _announce(self, store: PageStore, plan: PoolPlan) -> None:
        """The line that tells by eye whether two instances share: same identity, same shards."""
        client = self.config.client
        transports = (
            ("same-host", client.same_host),
            ("tcp", client.tcp),
            ("rdma " + client.rdma, client.rdma != "off"),
        )
        logger.info(
            "kvstore: %s identity %s %s; %s; shards %s; masters %s; transports %s",
            f"sglang {self.rank}",
            store.identity_digest,
            store.identity.summary(),
            plan.summary,
            " ".join(str(tuple(shard)) for shard in store.shards),
            ",".join(map(str, client.masters)),
            "+".join(name for name, on in transports if on),
        )

    def _warn_of_idle_lcm(self, pool: Any) -> None:
        cuts_heads = pool.layout == "page_head" or self.config.byte_order == CANONICAL
        if self.rank.tp_lcm_size and not cuts_heads and not is_replicated(self.rank, pool):
            logger.warning(
                "kvstore: tp_lcm_size has no effect with layout %s; use page_head, or byte_order canonical",
                pool.layout,
            )

    def _refuse(self, reason: str) -> None:
        if self._refusal != reason:
            logger.error("kvstore: %s; nothing is stored or loaded on %s", reason, f"sglang {self.rank}")
        self._refusal = reason


def _count(keys: Any) -> int:
    try:
        return len(keys)
    except TypeError:
        return 0


def _misses(keys: Any) -> list[bool]:
    return [False] * _count(keys)


def _transfer_misses(transfers: Any) -> dict[Any, list[bool]]:
    misses: dict[Any, list[bool]] = {}
    for transfer in transfers or ():
        misses.setdefault(transfer.name, []).extend(_misses(transfer.keys))
    return misses
