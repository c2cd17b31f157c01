"""The side pools of one rank (interface v2): registered one by one, asked in batches, one call of the store a
pool.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from hicache_adapter.batches import item_count, page_by_page_where_one_is_bad
from hicache_adapter.canonical_plan import new_plan
from hicache_adapter.config import AdapterConfig
from hicache_adapter.deadlines import Deadline
from hicache_adapter.hit_policy import (
    HitQuery,
    HitReport,
    UnknownPolicyError,
    restorable_prefixes,
    window_pages,
)
from hicache_adapter.kv_hints import NO_WISH, Wish
from hicache_adapter.model_facts import ModelFacts
from hicache_adapter.page_store import PageStore
from hicache_adapter.pool_plan import PoolPlan
from hicache_adapter.rank_coordinates import RankCoordinates
from hicache_adapter.recorder import Recorder
from hicache_adapter.sglang_types import KV_POOL, hit_policy_name, pool_name
from hicache_adapter.side_pool_kinds import side_pool_share
from hicache_adapter.weight_versions import VersionedStore, WeightVersions
from kvstore_client import Client, Identity
from kvstore_client.errors import ConfigError
from kvstore_client.keys import POOL_SIDE, Shard
from kvstore_client.protocol import ENTRIES_MAX, KEYS_MAX
from kvstore_client.signal_handlers import is_from_signal_handler
from kvstore_client.throttle import ThrottledLog

T = TypeVar("T")


@dataclass(frozen=True)
class SidePool:
    """Where a side pool's pages lie, and where they are stored."""

    name: str
    plan: PoolPlan
    shards: tuple[Shard, ...]
    stores: VersionedStore


class SidePools:
    """Registered on the scheduler's thread, asked by the storage threads. The data calls don't raise: what goes
    wrong with one pool makes its pages misses and leaves the others alone.
    """

    def __init__(
        self,
        client: Client,
        rank: RankCoordinates,
        config: AdapterConfig,
        recorder: Recorder,
        weights: WeightVersions,
        facts: Callable[[], ModelFacts],
        log: ThrottledLog,
    ) -> None:
        self._client = client
        self._rank = rank
        self._config = config
        self._recorder = recorder
        self._weights = weights
        self._facts = facts
        self._log = log
        self._pools: dict[str, SidePool] = {}

    def register(self, name: str, host_pool: Any) -> SidePool:
        """Learns where the pool's pages lie and what they are. ConfigError when that can't be told."""
        try:
            share = side_pool_share(name, self._rank, host_pool, self._config, self._facts())
            plan = new_plan(host_pool, share)
        except (AttributeError, TypeError) as error:
            raise ConfigError(
                "hicache-storage-backend",
                f"{type(host_pool).__name__} has another form than in the SGLang versions that are known: {error}",
            ) from error

        def make(identity: Identity) -> PageStore:
            return PageStore(self._client, identity, share.shards, self._log, pool=POOL_SIDE)

        stores = VersionedStore(share.identity, make)
        self._forget(self._pools.get(name))
        plan.lend_to(self._client)
        self._recorder.watch(name)
        # A new dict: a storage thread may be reading the old one.
        self._pools = {**self._pools, name: SidePool(name, plan, share.shards, stores)}
        return self._pools[name]

    def close(self) -> None:
        """Lets SGLang's memory go."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            self._forget(pool)

    def _forget(self, pool: SidePool | None) -> None:
        if pool is not None:
            pool.plan.take_back_from(self._client)

    def stores(self, version: str) -> list[PageStore]:
        """One a pool, of the weights of that version."""
        return [pool.stores.of(version) for pool in self._pools.values()]

    def hits(
        self,
        keys: Sequence[str],
        kv_pages: int,
        transfers: Sequence[Any],
        deadline: Deadline,
        version: str,
    ) -> HitReport:
        """What can be restored of a prefix whose first `kv_pages` KV pages are there. A pool that can't be asked
        allows nothing.
        """
        query = HitQuery(KV_POOL, kv_pages)
        for transfer in transfers:
            if not query.is_open:
                break
            query.add(transfer.name, self._verdict(transfer, keys[:kv_pages], deadline, version))
        return query.report()

    def _verdict(self, transfer: Any, keys: Sequence[str], deadline: Deadline, version: str) -> bytes:
        def ask() -> bytes:
            pool = self._pool_of(transfer)
            present = pool.stores.of(version).present(keys, deadline)
            return restorable_prefixes(present, hit_policy_name(transfer), window_pages(transfer.keys))

        return self._guarded("exists", transfer, bytes(len(keys)), ask)

    def get(self, transfers: Sequence[Any], deadline: Deadline, version: str) -> dict[Any, list[bool]]:
        """Fills the pages with those of the weights of that version; one truth a key for each transfer's name."""

        def load(pool: SidePool, keys: Sequence[str], host_indices: Any, at: int) -> list[bool]:
            memory = pool.plan.memory(len(keys), host_indices)
            return pool.stores.of(version).get(keys, memory, deadline)

        return self._each("get", transfers, load, self._recorder.loaded)

    def carried_bytes(self, transfers: Sequence[Any]) -> int:
        """What a get or put of them moves."""
        pools = ((self._pools.get(pool_name(each.name)), each.keys or ()) for each in transfers)
        return sum(len(keys) * pool.plan.page_bytes for pool, keys in pools if pool is not None)

    def put(
        self,
        transfers: Sequence[Any],
        depth: int,
        deadline: Deadline,
        version: str,
        wish: Wish = NO_WISH,
    ) -> dict[Any, list[bool]]:
        """Stores the pages that are absent, as those of the weights of that version; one truth a key for each transfer's
        name.
        """

        def save(pool: SidePool, keys: Sequence[str], host_indices: Any, at: int) -> list[bool]:
            if not self._weights.may_store(version):
                return [False] * len(keys)
            memory = pool.plan.memory(len(keys), host_indices)
            return pool.stores.of(version).put(keys, memory, depth + at, deadline, wish)

        return self._each("set", transfers, save, self._recorder.stored)

    def _each(
        self,
        verb: str,
        transfers: Sequence[Any],
        run: Callable[[SidePool, Sequence[str], Any, int], list[bool]],
        record: Callable[[str, list[bool], int], None],
    ) -> dict[Any, list[bool]]:
        def ask(transfer: Any) -> list[bool]:
            pool = self._pool_of(transfer)

            def part(keys: Sequence[str], host_indices: Any, at: int) -> list[bool]:
                return run(pool, keys, host_indices, at)

            answers = page_by_page_where_one_is_bad(
                transfer.keys,
                transfer.host_indices,
                pool.plan.page_size,
                partial(_in_batches, pool, part),
                partial(self._log_failure, verb, transfer),
            )
            record(pool.name, answers, pool.plan.page_bytes)
            return answers

        answers: dict[Any, list[bool]] = {}
        for transfer in transfers:
            misses = [False] * len(transfer.keys or ())
            answer = self._guarded(verb, transfer, misses, partial(ask, transfer)) if misses else misses
            # Never overwrite: SGLang takes a name's first False as the end of its hit.
            answers.setdefault(transfer.name, []).extend(answer)
        return answers

    def _pool_of(self, transfer: Any) -> SidePool:
        name = pool_name(transfer.name)
        if name not in self._pools:
            raise ValueError("the pool is not registered")
        return self._pools[name]

    def _guarded(self, verb: str, transfer: Any, miss: T, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            self._log_failure(verb, transfer, error)
            return miss

    def _log_failure(self, verb: str, transfer: Any, error: Exception) -> None:
        name = pool_name(transfer.name)
        topic = f"{verb} {name} {type(error).__name__}"
        message = "kvstore: %s of side pool '%s' failed: %s"
        # What SGLang asks for and nobody knows is no fault in a call.
        trace = False if isinstance(error, UnknownPolicyError) else error
        self._log.log(logging.ERROR, topic, message, verb, name, error, exc_info=trace)


def _in_batches(
    pool: SidePool,
    run: Callable[[Sequence[str], Any, int], list[bool]],
    keys: Sequence[str],
    host_indices: Any,
    at: int,
) -> list[bool]:
    """The answers of as many calls as the protocol's limits ask for: SGLang puts a whole node into one call, 100,000 pages
    and more where a page is one token. What comes after the deadline is a miss.
    """
    most = min(KEYS_MAX, ENTRIES_MAX // len(pool.shards))
    if len(keys) <= most:
        return run(keys, host_indices, at)
    if item_count(host_indices) != len(keys) * pool.plan.page_size:
        raise ValueError(f"{len(keys)} pages don't lie in {item_count(host_indices)} slots")
    slots = pool.plan.page_size
    answers: list[bool] = []
    for start in range(0, len(keys), most):
        end = min(start + most, len(keys))
        answers += run(keys[start:end], host_indices[start * slots : end * slots], at + start)
    return answers
