"""What every metadata store must do. A new store is one more entry in STORES."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kvstore.common.errors import FencedError, StoreError
from kvstore.master.metadata.registry import metadata_store
from kvstore.master.metadata.store import (
    COMMIT_BYTES_MAX,
    COMMIT_OPS_MAX,
    KEY_BYTES_MAX,
    OP_OVERHEAD_BYTES,
    SCAN_PAGE_BYTES,
    Delete,
    DeleteRange,
    MetadataStore,
    Op,
    Put,
    prefix_end,
)
from support.etcd_server import own_prefix, shared_etcd

STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda path: "memory:",
    "rocksdb": lambda path: f"rocksdb://{path}/db",
    "etcd": lambda path: shared_etcd().uri(own_prefix(path)),
}
DURABLE = {name: uri for name, uri in STORES.items() if name != "memory"}


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    store = metadata_store(STORES[request.param](tmp_path))
    await store.open()
    yield store
    await store.close()


async def everything(store: MetadataStore, prefix: bytes = b"k") -> dict[bytes, bytes]:
    return {key: value async for page in store.scan(prefix) for key, value in page}


async def test_what_was_put_is_read_back_and_what_was_deleted_is_not(store: MetadataStore) -> None:
    fence = await store.acquire()
    assert await store.get(b"k1") is None
    await store.commit((Put(b"k1", b"a"), Put(b"k2", b""), Put(b"\xff", b"b")), fence)
    assert (await store.get(b"k1"), await store.get(b"k2"), await store.get(b"\xff")) == (b"a", b"", b"b")
    await store.commit((Delete(b"k1"), Put(b"k2", b"c"), Delete(b"absent")), fence)
    assert (await store.get(b"k1"), await store.get(b"k2")) == (None, b"c")


async def test_a_range_is_deleted_from_its_start_up_to_its_end(store: MetadataStore) -> None:
    fence = await store.acquire()
    await store.commit([Put(b"k" + bytes([i]), b"v") for i in range(10)], fence)
    await store.commit((DeleteRange(b"k\x03", b"k\x07"),), fence)
    assert [key[1] for key in await everything(store)] == [0, 1, 2, 7, 8, 9]


async def test_a_scan_is_in_key_order_whole_and_bounded_to_its_prefix(store: MetadataStore) -> None:
    fence = await store.acquire()
    value = bytes(SCAN_PAGE_BYTES // 8)
    keys = [b"k" + i.to_bytes(2, "big") for i in range(40)]
    for key in random.Random(1).sample(keys, len(keys)):
        await store.commit((Put(key, value),), fence)
    await store.commit((Put(b"j\xff", b""), Put(b"l", b"")), fence)
    pages = [page async for page in store.scan(b"k")]
    assert [key for page in pages for key, _ in page] == keys
    assert all(sum(len(v) for _, v in page) <= SCAN_PAGE_BYTES + len(value) for page in pages)
    assert len(pages) > 1
    assert await everything(store, b"nothing here") == {}


async def test_a_newer_holder_ends_the_right_of_the_older_one(store: MetadataStore) -> None:
    first = await store.acquire()
    await store.commit((Put(b"k", b"first"),), first)
    second = await store.acquire()
    assert second.term > first.term
    with pytest.raises(FencedError):
        await store.commit((Put(b"k", b"late"),), first)
    assert await store.get(b"k") == b"first"
    await store.commit((Put(b"k", b"second"),), second)


@pytest.mark.parametrize(
    "ops",
    [
        [Put(b"k" + i.to_bytes(2, "big"), b"") for i in range(COMMIT_OPS_MAX + 1)],
        [Put(b"k", bytes(COMMIT_BYTES_MAX))],
        [Put(b"k", b"1"), Put(b"k", b"2")],
        [DeleteRange(b"k", b"l"), Put(b"k1", b"1")],
        [Put(b"k1", b"1"), DeleteRange(b"k", b"l")],
        [DeleteRange(b"a", b"c"), DeleteRange(b"b", b"d")],
        [Put(b"", b"1")],
        [Put(b"k" * (KEY_BYTES_MAX + 1), b"1")],
        [Put(b"\x00term", b"1")],
        [DeleteRange(b"\x00", b"\x01")],
    ],
    ids=[
        "ops",
        "bytes",
        "same key",
        "put in range",
        "range over put",
        "ranges",
        "empty key",
        "long key",
        "internal",
        "internal range",
    ],
)
async def test_a_commit_over_a_bound_is_refused_and_writes_nothing(
    store: MetadataStore, ops: list[Op]
) -> None:
    fence = await store.acquire()
    with pytest.raises(StoreError):
        await store.commit(ops, fence)
    assert await everything(store) == {}
    # Refused for good reason, not broken by it.
    await store.commit((Put(b"k", b"v"),), fence)


async def test_a_commit_at_the_bounds_is_taken(store: MetadataStore) -> None:
    fence = await store.acquire()
    await store.commit([Put(b"k" + i.to_bytes(2, "big"), b"") for i in range(COMMIT_OPS_MAX)], fence)
    await store.commit((Put(b"k", bytes(COMMIT_BYTES_MAX - OP_OVERHEAD_BYTES - 1)),), fence)
    assert len(await everything(store)) == COMMIT_OPS_MAX + 1


async def test_commits_and_scans_run_side_by_side(store: MetadataStore) -> None:
    fence = await store.acquire()
    await store.commit([Put(b"k" + bytes([i]), bytes(9000)) for i in range(100)], fence)

    async def write(start: int) -> None:
        for i in range(20):
            await store.commit((Put(b"m" + bytes([start, i]), b"v"),), fence)

    scans = [everything(store) for _ in range(3)]
    seen, *_ = await asyncio.gather(*scans, write(1), write(2))
    assert len(seen) == 100
    assert len(await everything(store, b"m")) == 40


async def test_random_commits_agree_with_a_dict(store: MetadataStore) -> None:
    rng = random.Random(5)
    fence = await store.acquire()
    model: dict[bytes, bytes] = {}
    for _ in range(150):
        keys = rng.sample([b"k" + bytes([i]) for i in range(40)], 8)
        ops: list[Op] = [Put(key, rng.randbytes(9)) for key in keys[:3]]
        ops += [Delete(key) for key in keys[3:5]]
        if rng.random() < 0.2:
            low, high = sorted(keys[5:7])
            ops = [DeleteRange(low, high)]
        await store.commit(ops, fence)
        for op in ops:
            if isinstance(op, Put):
                model[op.key] = op.value
            elif isinstance(op, Delete):
                model.pop(op.key, None)
            else:
                model = {k: v for k, v in model.items() if not op.start <= k < op.end}
    assert await everything(store) == model


async def test_a_closed_store_says_so(store: MetadataStore) -> None:
    fence = await store.acquire()
    await store.close()
    await store.close()
    for use in (store.get(b"k"), store.acquire(), store.commit((Put(b"k", b"v"),), fence)):
        with pytest.raises(StoreError):
            await use


@pytest.mark.parametrize("name", DURABLE)
async def test_a_reopened_store_has_everything_and_a_higher_term(name: str, tmp_path: Path) -> None:
    uri = DURABLE[name](tmp_path)
    term = 0
    for round_number in range(3):
        store = metadata_store(uri)
        await store.open()
        fence = await store.acquire()
        assert fence.term > term
        term = fence.term
        assert len(await everything(store)) == round_number
        await store.commit((Put(b"k%d" % round_number, b"v"),), fence)
        assert await store.size_bytes() > 0
        await store.close()


async def test_a_store_in_use_is_refused_with_a_remedy(tmp_path: Path) -> None:
    uri = STORES["rocksdb"](tmp_path)
    store = metadata_store(uri)
    await store.open()
    second = metadata_store(uri)
    with pytest.raises(StoreError, match="another master"):
        await second.open()
    await second.close()
    await store.close()


@pytest.mark.parametrize("uri", ["redis://x", "rocksdb://relative", "rocksdb:///x?y=1", "", "/a/path"])
def test_uris_that_name_no_store_are_refused(uri: str) -> None:
    with pytest.raises(StoreError):
        metadata_store(uri)


def test_a_prefix_ends_before_the_next_one() -> None:
    assert prefix_end(b"a") == b"b"
    assert prefix_end(b"a\xff\xff") == b"b"
    with pytest.raises(StoreError):
        prefix_end(b"\xff")
