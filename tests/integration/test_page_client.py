"""The native client against a real master and a real segment, over TCP (through a proxy) and on the same host."""

from __future__ import annotations

import mmap
import os
import random
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore_client._native import PageClient, Pieces, SharedBuffer
from support.processes import Cluster
from support.tcp_proxy import TO_CLIENT, TO_SERVER, TcpProxy
from support.waiting import wait_until

OK, MISS, EXISTS, CONFLICT, DIGEST_MISMATCH, TIMEOUT, UNAVAILABLE = 0, 1, 2, 4, 5, 8, 9
WHOLE_SHARD = bytes.fromhex("000000000000010000000100")
DEADLINE_MS = 10_000
LATE_MS_MAX = 100


class Store:
    """A master and one segment; TCP clients reach the segment through the proxy."""

    def __init__(self, directory: Path) -> None:
        self.proxy = TcpProxy()
        self.cluster = Cluster(directory)
        self.cluster.start_master()
        self.segment = self.cluster.start_segment(options=(f"--advertise-port={self.proxy.port}",))
        self.proxy.target_port = self.segment.wait_event("listening")["port"]

    def client(self, **options: object) -> PageClient:
        host, port = self.cluster.masters.split(":")
        return PageClient([(host, int(port))], **options)  # type: ignore[arg-type]

    def close(self) -> None:
        self.proxy.close()
        self.cluster.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    running = Store(tmp_path_factory.mktemp("page_client"))
    try:
        yield running
    finally:
        running.close()
        print(running.cluster.logs())


@pytest.fixture(params=["tcp", "same_host"])
def client(store: Store, request: pytest.FixtureRequest) -> Iterator[PageClient]:
    made = store.client(same_host=request.param == "same_host", tcp=request.param == "tcp")
    yield made
    made.close()


@pytest.fixture
def tcp_client(store: Store) -> Iterator[PageClient]:
    made = store.client(same_host=False)
    yield made
    made.close()


@pytest.fixture
def near_client(store: Store) -> Iterator[PageClient]:
    made = store.client(tcp=False)
    yield made
    made.close()


def open_namespace(client: PageClient, name: str = "pages") -> int:
    status, handle = client.open_namespace(b'{"model":"%s"}' % name.encode(), name, DEADLINE_MS)
    assert status == OK
    return handle


def page_hashes(count: int) -> bytes:
    return os.urandom(32 * count)


class Memory:
    """`keys` objects of one size in a SharedBuffer, one after the other."""

    def __init__(self, keys: int, size_bytes: int, content: bytes | None = None) -> None:
        self.buffer = SharedBuffer(keys * size_bytes)
        self.view = memoryview(self.buffer)
        if content is not None:
            self.view[:] = content
        self.pieces = Pieces.affine(
            [[(self.buffer.address, size_bytes, size_bytes)]], array("q", range(keys))
        )


def elapsed_ms(since: float) -> float:
    return (time.monotonic() - since) * 1000


@pytest.mark.parametrize("size_bytes", [1, 4095, 65_537, 3_000_001])
def test_objects_of_odd_sizes_come_back_byte_for_byte(client: PageClient, size_bytes: int) -> None:
    handle, hashes = open_namespace(client), page_hashes(5)
    content = random.Random(size_bytes).randbytes(5 * size_bytes)
    source, target = Memory(5, size_bytes, content), Memory(5, size_bytes)
    assert client.put(handle, 0, WHOLE_SHARD, hashes, source.pieces, DEADLINE_MS) == bytes([OK] * 5)
    assert client.put(handle, 0, WHOLE_SHARD, hashes, source.pieces, DEADLINE_MS) == bytes([EXISTS] * 5)
    assert client.exists(handle, 0, WHOLE_SHARD, hashes, 1000, DEADLINE_MS) == bytes([OK] * 5)
    assert client.get(handle, 0, WHOLE_SHARD, hashes, target.pieces, DEADLINE_MS) == bytes([OK] * 5)
    assert bytes(target.view) == content


def test_objects_in_strided_pieces_of_several_shards_come_back(client: PageClient) -> None:
    # Two shards; shard 0 is a K and a V stretch of each page, shard 1 eight small stretches. Pages lie in a shuffled order.
    handle, keys = open_namespace(client, "strided"), 9
    shards = WHOLE_SHARD + bytes.fromhex("010000000000010000000100")
    indices = array("q", random.Random(5).sample(range(32), keys))
    hashes = page_hashes(keys)

    def plan(memory: SharedBuffer) -> Pieces:
        k, v, small = memory.address, memory.address + 32 * 4100, memory.address + 2 * 32 * 4100
        return Pieces.affine(
            [
                [(k, 4100, 4100), (v, 4100, 4099)],
                [(small + head * 300, 8 * 300, 257) for head in range(8)],
            ],
            indices,
        )

    total = 2 * 32 * 4100 + 32 * 8 * 300
    source, target = SharedBuffer(total), SharedBuffer(total)
    memoryview(source)[:] = random.Random(6).randbytes(total)
    assert plan(source).total_bytes == keys * (4100 + 4099 + 8 * 257)
    assert client.put(handle, 3, shards, hashes, plan(source), DEADLINE_MS) == bytes(2 * keys)
    assert client.get(handle, 3, shards, hashes, plan(target), DEADLINE_MS) == bytes(2 * keys)
    was, now = memoryview(source), memoryview(target)
    for index in range(32):
        stretches = [(index * 4100, 4100), (32 * 4100 + index * 4100, 4099)]
        stretches += [(2 * 32 * 4100 + index * 8 * 300 + head * 300, 257) for head in range(8)]
        for offset, size in stretches:
            wanted = bytes(was[offset : offset + size]) if index in indices else bytes(size)
            assert bytes(now[offset : offset + size]) == wanted


def test_another_length_under_a_key_is_a_counted_conflict_and_changes_nothing(client: PageClient) -> None:
    handle, hashes = open_namespace(client, "conflict"), page_hashes(1)
    first, other, target = Memory(1, 3000, os.urandom(3000)), Memory(1, 3001), Memory(1, 3000)
    assert client.put(handle, 0, WHOLE_SHARD, hashes, first.pieces, DEADLINE_MS) == bytes(1)
    assert client.put(handle, 0, WHOLE_SHARD, hashes, other.pieces, DEADLINE_MS) == bytes([CONFLICT])
    assert client.counters()["put_conflicts"] == 1
    assert client.get(handle, 0, WHOLE_SHARD, hashes, target.pieces, DEADLINE_MS) == bytes(1)
    assert bytes(target.view) == bytes(first.view)


def test_absent_objects_are_misses_and_leave_memory_alone(client: PageClient) -> None:
    handle, target = open_namespace(client), Memory(4, 5000, b"\x55" * 20_000)
    hashes = page_hashes(4)
    assert client.exists(handle, 0, WHOLE_SHARD, hashes, 1000, DEADLINE_MS) == bytes([MISS] * 4)
    assert client.exists(handle, 0, WHOLE_SHARD, hashes, 0, DEADLINE_MS) == bytes([MISS] * 4)
    assert client.get(handle, 0, WHOLE_SHARD, hashes, target.pieces, DEADLINE_MS) == bytes([MISS] * 4)
    assert bytes(target.view) == b"\x55" * 20_000
    assert client.fetch(handle, 0, WHOLE_SHARD, hashes, DEADLINE_MS, 1 << 20) == [None] * 4
    assert client.remove(handle, 0, WHOLE_SHARD, hashes, DEADLINE_MS) == bytes([MISS] * 4)


def test_string_keys_are_fetched_without_knowing_their_length_and_removed(client: PageClient) -> None:
    from kvstore_client._native import string_hashes

    handle, texts = open_namespace(client, "strings"), [f"{os.urandom(8).hex()}/{i}" for i in range(3)]
    hashes, values = string_hashes(texts), [b"x" * 10, os.urandom(70_000), b"z"]
    buffers = [bytearray(value) for value in values]
    pieces = Pieces.from_pointers(
        array("Q", [_address(buffer) for buffer in buffers]), array("Q", map(len, values)), 1
    )
    assert client.put(handle, 0xFFFF, WHOLE_SHARD, hashes, pieces, DEADLINE_MS, texts=texts) == bytes(3)
    assert client.fetch(handle, 0xFFFF, WHOLE_SHARD, hashes, DEADLINE_MS, 1 << 20) == values
    assert client.fetch(handle, 0xFFFF, WHOLE_SHARD, hashes, DEADLINE_MS, 70_000) == [
        values[0],
        None,
        values[2],
    ]
    assert client.remove(handle, 0xFFFF, WHOLE_SHARD, hashes[:32], DEADLINE_MS) == bytes([OK])
    assert client.fetch(handle, 0xFFFF, WHOLE_SHARD, hashes, DEADLINE_MS, 1 << 20) == [None, *values[1:]]


def test_small_pieces_of_registered_memory_are_put_together_before_the_segment_pulls(
    near_client: PageClient,
) -> None:
    handle, size, piece = open_namespace(near_client, "small-pieces"), 4 << 20, 256
    fd = os.memfd_create("pool")
    os.ftruncate(fd, size)
    mapped = mmap.mmap(fd, size)
    mapped[:] = os.urandom(size)
    address = _address(mapped)
    assert near_client.register_fd(address, size, fd)
    os.close(fd)
    hashes, pieces_a_page = page_hashes(16), size // 16 // piece
    # Each page is every 16th piece.
    plan = [[(address + number * 16 * piece, piece, piece) for number in range(pieces_a_page)]]
    pieces = Pieces.affine(plan, array("q", range(16)))
    assert near_client.put(handle, 0, WHOLE_SHARD, hashes, pieces, DEADLINE_MS) == bytes(16)
    counters = near_client.counters()
    assert (counters["put_staged_bytes"], counters["put_pulled_bytes"]) == (size, 0)
    stored = near_client.fetch(handle, 0, WHOLE_SHARD, hashes, DEADLINE_MS, size) or []
    for page, content in enumerate(stored):
        assert content == b"".join(mapped[at : at + piece] for at in range(page * piece, size, 16 * piece)), (
            page
        )


def test_puts_from_registered_memory_are_pulled_by_the_segment(near_client: PageClient) -> None:
    handle, size = open_namespace(near_client, "pulled"), 1 << 20
    content = os.urandom(size)
    fd = os.memfd_create("pool")  # as SGLang makes it: without seals
    os.ftruncate(fd, size)
    mapped = mmap.mmap(fd, size)
    mapped[:] = content
    address = _address(mapped)
    assert near_client.register_fd(address, size, fd)
    assert near_client.register_fd(address, size, fd)
    os.close(fd)
    hashes = page_hashes(16)
    pieces = Pieces.affine([[(address, size // 16, size // 16)]], array("q", range(16)))
    assert near_client.put(handle, 0, WHOLE_SHARD, hashes, pieces, DEADLINE_MS) == bytes(16)
    assert near_client.counters()["put_pulled_bytes"] == size
    near_client.unregister(address)
    more = page_hashes(16)
    assert near_client.put(handle, 0, WHOLE_SHARD, more, pieces, DEADLINE_MS) == bytes(16)
    assert near_client.counters()["put_pulled_bytes"] == size
    assert near_client.counters()["transport_same_host_bytes_put"] == 2 * size
    for each in (hashes, more):
        assert b"".join(near_client.fetch(handle, 0, WHOLE_SHARD, each, DEADLINE_MS, size) or []) == content


def test_a_byte_damaged_on_its_way_to_the_client_is_a_miss_and_counted(
    store: Store, tcp_client: PageClient
) -> None:
    handle, hashes, size = open_namespace(tcp_client, "damaged"), page_hashes(8), 1 << 20
    content = os.urandom(8 * size)
    source, target = Memory(8, size, content), Memory(8, size)
    assert tcp_client.put(handle, 0, WHOLE_SHARD, hashes, source.pieces, DEADLINE_MS) == bytes(8)
    before = store.proxy.flips_done
    store.proxy.flip(TO_CLIENT, size)
    statuses = tcp_client.get(handle, 0, WHOLE_SHARD, hashes, target.pieces, DEADLINE_MS)
    assert store.proxy.flips_done == before + 1
    assert sorted(statuses) == [OK] * 7 + [DIGEST_MISMATCH]
    for key, status in enumerate(statuses):
        same = target.view[key * size : (key + 1) * size] == content[key * size : (key + 1) * size]
        assert same == (status == OK)
    assert tcp_client.counters()["digest_mismatches"] == 1
    assert tcp_client.counters()["suspects_confirmed"] == 0  # the segment found its slot intact
    assert tcp_client.get(handle, 0, WHOLE_SHARD, hashes, target.pieces, DEADLINE_MS) == bytes(8)
    assert bytes(target.view) == content


def test_a_byte_damaged_on_its_way_to_the_segment_is_not_stored(store: Store, tcp_client: PageClient) -> None:
    handle, hashes, size = open_namespace(tcp_client, "damaged"), page_hashes(1), 1 << 20
    source = Memory(1, size, os.urandom(size))
    assert tcp_client.exists(handle, 0, WHOLE_SHARD, hashes, 100, DEADLINE_MS) == bytes([MISS])
    before = store.proxy.flips_done
    store.proxy.flip(TO_SERVER, size // 2)
    assert tcp_client.put(handle, 0, WHOLE_SHARD, hashes, source.pieces, DEADLINE_MS) == bytes(
        [DIGEST_MISMATCH]
    )
    assert store.proxy.flips_done == before + 1
    assert tcp_client.exists(handle, 0, WHOLE_SHARD, hashes, 100, DEADLINE_MS) == bytes([MISS])
    assert tcp_client.put(handle, 0, WHOLE_SHARD, hashes, source.pieces, DEADLINE_MS) == bytes([OK])


def test_an_epoch_bump_empties_the_namespace_for_other_clients(store: Store, client: PageClient) -> None:
    handle, hashes = open_namespace(client, "bumped"), page_hashes(3)
    source = Memory(3, 5000, os.urandom(15_000))
    assert client.put(handle, 0, WHOLE_SHARD, hashes, source.pieces, DEADLINE_MS) in (
        bytes(3),
        bytes([EXISTS] * 3),
    )
    other = store.client()
    try:
        theirs = open_namespace(other, "bumped")
        _, epoch = other.namespace_state(theirs)
        assert other.bump_namespace(theirs, DEADLINE_MS) == OK
        assert other.namespace_state(theirs)[1] == epoch + 1
        wait_until(
            lambda: client.exists(handle, 0, WHOLE_SHARD, hashes, 1000, DEADLINE_MS) == bytes([MISS] * 3),
            "the segment, where this client knows the objects to be, has heard of it",
            timeout_s=2.0,
        )
        assert client.namespace_state(handle) == other.namespace_state(theirs)
    finally:
        other.close()


@pytest.mark.alone
def test_a_hung_segment_costs_one_deadline_without_the_gil_and_heals(
    store: Store, client: PageClient
) -> None:
    handle, hashes = open_namespace(client, "hung"), page_hashes(4)
    source, target = Memory(4, 100_000, os.urandom(400_000)), Memory(4, 100_000)
    assert client.put(handle, 0, WHOLE_SHARD, hashes, source.pieces, DEADLINE_MS) == bytes(4)
    ticks, done = 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.wait(0.01):
            ticks += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    store.segment.pause()
    try:
        started = time.monotonic()
        statuses = client.get(handle, 0, WHOLE_SHARD, hashes, target.pieces, 400)
        took_ms = elapsed_ms(started)
        target.view[:] = b"\x55" * 400_000
        assert statuses == bytes([TIMEOUT] * 4)
        assert took_ms <= 400 + LATE_MS_MAX
        assert ticks >= 5
        # The breaker probes from time to time, briefly; every other call is answered at once.
        started = time.monotonic()
        assert OK not in client.get(handle, 0, WHOLE_SHARD, hashes, target.pieces, 5000)
        assert elapsed_ms(started) <= 250 + LATE_MS_MAX
    finally:
        store.segment.resume()
        done.set()
        ticker.join()
    wait_until(
        lambda: client.get(handle, 0, WHOLE_SHARD, hashes, target.pieces, 1000) == bytes(4),
        "the segment serves again",
    )
    assert bytes(target.view) == bytes(source.view)


@pytest.mark.alone
def test_a_hung_master_costs_one_deadline_and_heals(store: Store, client: PageClient) -> None:
    handle, hashes = open_namespace(client, "hung master"), page_hashes(2)
    store.cluster.master.pause()
    try:
        started = time.monotonic()
        assert OK not in client.exists(handle, 0, WHOLE_SHARD, hashes, 1000, 300)
        assert elapsed_ms(started) <= 300 + LATE_MS_MAX
        started = time.monotonic()
        assert OK not in client.exists(handle, 0, WHOLE_SHARD, hashes, 1000, 5000)
        assert elapsed_ms(started) <= 250 + LATE_MS_MAX
    finally:
        store.cluster.master.resume()
    wait_until(
        lambda: client.exists(handle, 0, WHOLE_SHARD, hashes, 1000, 1000) == bytes([MISS] * 2),
        "the master answers again",
    )


def test_wrong_lengths_of_arguments_are_value_errors(store: Store) -> None:
    client = store.client()
    try:
        handle = open_namespace(client)
        one, hashes = Memory(1, 100), page_hashes(2)
        with pytest.raises(ValueError, match="32 bytes each"):
            client.exists(handle, 0, WHOLE_SHARD, hashes[:-1], 0, DEADLINE_MS)
        with pytest.raises(ValueError, match="12 bytes each"):
            client.exists(handle, 0, b"", hashes, 0, DEADLINE_MS)
        with pytest.raises(ValueError, match="memory describes 1 entries"):
            client.get(handle, 0, WHOLE_SHARD, hashes, one.pieces, DEADLINE_MS)
        with pytest.raises(ValueError, match="split the batch"):
            client.exists(handle, 0, WHOLE_SHARD, bytes(32 * 65_537), 0, DEADLINE_MS)
        with pytest.raises(ValueError, match="never opened"):
            client.exists(99, 0, WHOLE_SHARD, hashes, 0, DEADLINE_MS)
        with pytest.raises(ValueError, match="1 texts for 2 keys"):
            client.put(handle, 0, WHOLE_SHARD, hashes, Memory(2, 10).pieces, DEADLINE_MS, texts=["a"])
        with pytest.raises(ValueError, match="64-bit"):
            Pieces.affine([[(one.buffer.address, 1, 1)]], array("i", [1]))
        assert client.exists(handle, 0, WHOLE_SHARD, b"", 0, DEADLINE_MS) == b""
    finally:
        client.close()


def _address(buffer: bytearray | mmap.mmap) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
