"""The public Python API against a real master and a real segment."""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore_client import Client, ConfigError, Identity, Namespace, Shard, SharedBuffer
from kvstore_client._native import Pieces
from kvstore_client.config import CLIENT_OPTIONS
from kvstore_client.protocol import Status
from support.processes import Cluster
from support.running_cluster import paused, running_cluster
from support.tcp_proxy import TO_CLIENT, TcpProxy
from support.waiting import wait_until

IDENTITY = Identity(
    model="acme/model",
    kv_dtype="bfloat16",
    store_dtype="bfloat16",
    pool_class="MHATokenToKVPoolHost",
    byte_order="page_first",
    page_size=16,
    head_count=2,
    head_dim=8,
    v_head_dim=8,
)
# What a call may take beyond its deadline on a busy two-core machine.
GRACE_S = 0.5


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("store")) as processes:
        yield processes


@pytest.fixture(params=["tcp", "same_host"])
def client(request: pytest.FixtureRequest, store: Cluster) -> Iterator[Client]:
    transport = {request.param: True, ({"tcp", "same_host"} - {request.param}).pop(): False}
    with Client(store.masters, deadline_ms=5000, **transport) as opened:
        yield opened


@pytest.fixture
def space(client: Client, request: pytest.FixtureRequest) -> Namespace:
    return client.namespace(f"test/{request.node.name}/{os.urandom(4).hex()}")


def page_hashes(count: int, salt: str = "") -> list[bytes]:
    return [hashlib.sha256(f"{salt}{number}".encode()).digest() for number in range(count)]


def contents(count: int, size: int, seed: int) -> list[bytes]:
    print(f"seed {seed}")
    generator = random.Random(seed)
    return [generator.randbytes(size + number) for number in range(count)]


def test_a_value_comes_back_under_its_key(space: Namespace) -> None:
    assert space.put("greeting", b"hello")
    assert space.get("greeting") == b"hello"
    assert space.exists("greeting")
    assert space.get("nothing") is None
    assert not space.exists("nothing")


def test_a_key_is_written_once(space: Namespace) -> None:
    assert space.put("key", b"first")
    assert space.put("key", b"other"), "already there counts as stored"
    assert space.get("key") == b"first"
    assert not space.put("key", b"another length"), "a conflict: it can't be the same object"
    assert space.get("key") == b"first"


def test_batches_answer_one_item_a_key_in_order(space: Namespace) -> None:
    values = contents(200, 10_000, seed=1)
    keys = [f"key {number}" for number in range(200)]
    assert space.batch_put(keys[::2], values[::2]) == [True] * 100
    present = [number % 2 == 0 for number in range(200)]
    assert space.batch_exists(keys) == present
    assert space.batch_get(keys) == [
        value if there else None for value, there in zip(values, present, strict=True)
    ]
    assert space.prefix_exists(keys) == 1
    assert space.prefix_exists(keys[::2]) == 100
    assert space.batch_remove(keys[:10]) == present[:10]
    assert space.batch_exists(keys[:12]) == [False] * 10 + [True, False]


def test_empty_batches_are_fine(space: Namespace) -> None:
    assert (
        space.batch_put([], [])
        == space.batch_exists([])
        == space.batch_get([])
        == space.batch_remove([])
        == []
    )
    assert space.prefix_exists([]) == 0


@pytest.mark.parametrize("size", [1, 63, 4095, 4097, 1_000_003])
def test_odd_sizes_come_back_whole(space: Namespace, size: int) -> None:
    value = random.Random(size).randbytes(size)
    assert space.put("odd", value)
    assert space.get("odd") == value


def test_values_are_taken_from_and_put_into_every_kind_of_memory(space: Namespace) -> None:
    value = random.Random(3).randbytes(8192)
    raw = ctypes.create_string_buffer(value, len(value))
    shared = SharedBuffer(8192)
    memoryview(shared)[:] = value
    sources = {
        "bytes": value,
        "bytearray": bytearray(value),
        "memoryview": memoryview(value),
        "array": array("Q", value),
        "pointer": (ctypes.addressof(raw), 8192),
        "shared": shared,
    }
    assert space.batch_put(list(sources), list(sources.values())) == [True] * len(sources)
    into = bytearray(8192)
    numbers = array("d", bytes(8192))
    pointed = ctypes.create_string_buffer(8192)
    target = SharedBuffer(8192)
    targets = [into, numbers, (ctypes.addressof(pointed), 8192), target]
    assert space.batch_get_into(["bytes", "array", "pointer", "shared"], targets) == [True] * 4
    assert [bytes(into), numbers.tobytes(), pointed.raw, bytes(memoryview(target))] == [value] * 4


def test_memory_of_another_size_is_a_miss_and_never_a_part(space: Namespace) -> None:
    assert space.put("key", b"x" * 1000)
    for size in (999, 1001):
        assert not space.get_into("key", bytearray(size))


def test_page_keys_are_raw_or_hex_and_carry_pool_and_shards(space: Namespace) -> None:
    hashes = page_hashes(50)
    shards = [Shard(0, 4, group, 2) for group in range(2)]
    pages = space.pages(pool=3, shards=shards)
    values = contents(100, 5000, seed=5)
    assert pages.batch_put(hashes, values, depth=7) == [True] * 50
    assert pages.batch_get([page.hex() for page in hashes]) == values
    assert space.pages(pool=3, shards=shards[:1]).batch_get(hashes) == values[::2]
    assert space.pages(pool=4, shards=shards).batch_exists(hashes) == [False] * 50
    assert pages.prefix_exists(hashes) == 50


def test_a_page_is_there_only_with_all_of_its_shards(space: Namespace) -> None:
    hashes = page_hashes(4)
    halves = [space.pages(shards=[Shard(0, 4, group, 2)]) for group in range(2)]
    assert halves[0].batch_put(hashes, [b"left"] * 4) == [True] * 4
    assert halves[1].batch_put(hashes[:2], [b"right"] * 2) == [True] * 2
    both = space.pages(shards=[Shard(0, 4, group, 2) for group in range(2)])
    assert both.batch_exists(hashes) == [True, True, False, False]
    assert both.prefix_exists(hashes) == 2
    assert both.present_hashes(b"".join(reversed(hashes))) == bytes([0, 0, 1, 1])
    assert (
        halves[0].present_hashes(b"".join(hashes) * 20_000) == b"\1" * 80_000
    )  # more than one request takes
    assert both.batch_get(hashes) == [b"left", b"right"] * 2 + [b"left", None] * 2


def test_string_and_page_keys_do_not_meet(space: Namespace) -> None:
    text = page_hashes(1)[0].hex()
    assert space.put(text, b"string")
    assert not space.pages().exists(text)


def test_namespaces_do_not_see_each_other(client: Client) -> None:
    first, second = (client.namespace(f"{name}-{os.urandom(4).hex()}") for name in ("first", "second"))
    assert first.put("key", b"value")
    assert second.get("key") is None


def test_clearing_a_namespace_hides_it_from_every_client(client: Client, store: Cluster) -> None:
    name = f"cleared-{os.urandom(4).hex()}"
    with Client(store.masters, deadline_ms=5000) as other:
        mine, theirs = client.namespace(name), other.namespace(name)
        assert mine.put("key", b"old")
        assert theirs.get("key") == b"old"
        before = mine.namespace_id
        assert mine.clear()
        assert mine.namespace_id != before
        assert mine.get("key") is None
        wait_until(lambda: theirs.get("key") is None, "the clear reaches another client")
        assert mine.put("key", b"new and longer")
        assert theirs.get("key") == b"new and longer"


def test_threads_share_one_client(space: Namespace) -> None:
    failures: list[str] = []

    def work(number: int) -> None:
        values = contents(20, 3000, seed=number)
        keys = [f"{number}/{item}" for item in range(20)]
        for _ in range(3):
            if space.batch_put(keys, values) != [True] * 20 or space.batch_get(keys) != values:
                failures.append(f"thread {number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


@pytest.mark.parametrize("end", ["low", "high"])
@pytest.mark.parametrize("same_host", [False, True])
def test_pages_move_with_every_number_at_one_end_of_its_bounds(
    store: Cluster, request: pytest.FixtureRequest, end: str, same_host: bool
) -> None:
    numbers = {
        name: getattr(option, end)
        for name, option in CLIENT_OPTIONS.items()
        if type(option.default) is int and name not in ("deadline_ms", "connect_timeout_ms")
    }
    with Client(
        store.masters, deadline_ms=20_000, same_host=same_host, tcp=not same_host, **numbers
    ) as client:
        pages = client.namespace(f"test/{request.node.name}/{os.urandom(4).hex()}").pages()
        keys, values = page_hashes(32), contents(32, 300_000, seed=5)
        assert pages.batch_put(keys, values) == [True] * 32
        assert pages.batch_exists(keys) == [True] * 32
        assert pages.batch_get(keys) == values


def test_a_closed_namespace_makes_room_and_answers_as_an_empty_store(
    client: Client, space: Namespace
) -> None:
    assert space.put("key", b"value")
    space.close()
    assert not space.exists("key") and space.get("key") is None and not space.put("another", b"value")
    assert (space.namespace_id, space.epoch, space.clear()) == ("", 0, False)
    names = [f"key {number}" for number in range(100)]
    assert space.batch_get(names) == [None] * 100
    assert space.batch_put(names, [b"value"] * 100) == [False] * 100
    pages, buffer = space.pages(), SharedBuffer(4096)
    pieces = Pieces.from_pointers(array("Q", [buffer.address]), array("Q", [4096]), 1)
    for call in (pages.put_pieces, pages.get_pieces):
        assert call(bytes(32), pieces, deadline_ms=1000) == bytes([Status.UNAVAILABLE])
    assert client.stats()["bad_arguments"] == client.stats()["surprises"] == 0
    again = client.namespace(space.name)
    assert again.get("key") == b"value"
    for number in range(5000):
        client.namespace(f"{space.name}/{number}").close()


def test_an_identity_names_the_same_namespace_in_every_client(client: Client, store: Cluster) -> None:
    key = os.urandom(32)
    assert client.namespace(IDENTITY).pages().put(key, b"page")
    with Client(store.masters, deadline_ms=5000) as other:
        theirs = other.namespace(IDENTITY)
        assert theirs.pages().get(key) == b"page"
        assert theirs.namespace_id == client.namespace(IDENTITY).namespace_id != ""


def test_stats_name_the_namespace_and_count(space: Namespace) -> None:
    assert space.open()
    assert space.put("key", b"value")
    stats = space.stats()
    assert stats["namespace_id"] == space.namespace_id
    assert stats["bad_arguments"] == 0


# ---- nothing raises


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        ([7], [b"x"]),
        (["x" * 257], [b"x"]),
        (["a"], []),
        (["a"], [b"x", b"y"]),
        (["a"], ["text is no memory"]),
        (["a"], [(0, 10)]),
        (["a"], [("address", 10)]),
        (["a"], [memoryview(b"abcdef")[::2]]),
        (["a"], [b""]),
        (["a"], [(4096, 0)]),
        (["a"], [(4096, (1 << 30) + 1)]),
        (["a"], None),
        (None, [b"x"]),
        ("abc", [b"x", b"y", b"z"]),
    ],
)
def test_bad_arguments_are_answered_as_failures_and_counted(
    space: Namespace, keys: object, values: object
) -> None:
    before = space.stats()["bad_arguments"]
    count = len(keys) if isinstance(keys, list) else 0
    assert space.batch_put(keys, values) == [False] * count  # type: ignore[arg-type]
    assert space.stats()["bad_arguments"] == int(before) + 1


@pytest.mark.parametrize("bad", ["a second", -1, 1 << 32, 1.5])
def test_a_bad_argument_of_a_whole_batch_is_said_once_and_no_keys_fault(
    space: Namespace, caplog: pytest.LogCaptureFixture, bad: Any
) -> None:
    keys = [f"key {number}" for number in range(64)]
    before = int(space.stats()["bad_arguments"])
    assert space.batch_put(keys, [b"value"] * 64, depth=bad) == [False] * 64
    assert space.batch_exists(keys, pin_ms=bad) == [False] * 64
    assert space.prefix_exists(keys, pin_ms=bad) == 0
    assert space.pages().present_hashes(bytes(64), pin_ms=bad) == bytes(2)
    assert int(space.stats()["bad_arguments"]) == before + 4
    assert f"depth is a whole number from 0 to 2147483647, not {bad!r}" in caplog.text
    assert f"pin_ms is a whole number from 0 to 4294967295, not {bad!r}" in caplog.text


def test_one_bad_key_or_value_in_a_batch_fails_alone(space: Namespace) -> None:
    good = {f"key {number}": b"value %d" % number for number in range(200)}
    bad: dict[object, object] = {7: b"x", "x" * 257: b"x", "empty": b"", "no memory": "text", "\ud800": b"x"}
    entries = [*good.items(), *bad.items()]
    random.Random(20).shuffle(entries)
    keys, values = [key for key, _ in entries], [value for _, value in entries]
    is_good = [key in good for key in keys]
    before = int(space.stats()["bad_arguments"])
    assert space.batch_put(keys, values) == is_good
    assert int(space.stats()["bad_arguments"]) == before + len(bad)
    assert space.batch_get(keys) == [good.get(key) for key in keys]  # type: ignore[call-overload]
    assert space.batch_exists(keys) == is_good
    memory = [bytearray(len(good.get(key, b"x"))) for key in keys]  # type: ignore[call-overload]
    assert space.batch_get_into(keys, memory) == is_good
    leading = is_good.index(False)
    assert space.prefix_exists(keys) == leading
    assert space.batch_remove(keys) == is_good


def test_reading_into_read_only_memory_is_a_failure(space: Namespace) -> None:
    assert space.put("key", b"value")
    constant = b"xxxxx"
    assert not space.get_into("key", constant)
    assert constant == b"xxxxx"


def every_answer(space: Namespace) -> list[object]:
    pages = space.pages()
    return [
        space.put("a", b"x"),
        space.get("a"),
        space.get_into("a", bytearray(1)),
        space.exists("a"),
        space.remove("a"),
        space.batch_put(["a", "b"], [b"x", b"y"]),
        space.batch_get(["a", "b"]),
        space.batch_exists(["a", "b"]),
        space.prefix_exists(["a", "b"]),
        space.clear(),
        pages.put(bytes(32), b"x"),
        pages.batch_get([bytes(32)] * 2),
        space.open(),
    ]


NOTHING: list[object] = [
    False,
    None,
    False,
    False,
    False,
    [False, False],
    [None, None],
    [False, False],
    0,
    False,
    False,
    [None, None],
    False,
]


@pytest.mark.alone
def test_an_unreachable_store_is_an_empty_store() -> None:
    with Client("127.0.0.1:1", deadline_ms=200) as client:
        started = time.monotonic()
        assert every_answer(client.namespace("n")) == NOTHING
        assert time.monotonic() - started < len(NOTHING) * (0.2 + GRACE_S)


def test_a_closed_client_answers_as_an_empty_store(store: Cluster) -> None:
    client = Client(store.masters)
    space = client.namespace("n")
    assert space.put("a", b"x")
    client.close()
    client.close()
    assert every_answer(space) == NOTHING


@pytest.mark.alone
def test_a_hung_store_costs_each_call_its_deadline_at_most(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as store, Client(store.masters, deadline_ms=300) as client:
        space = client.namespace("n")
        assert space.put("a", b"x", deadline_ms=5000)
        with paused(store.segments["segment"], store.master):
            for _ in range(5):
                started = time.monotonic()
                assert space.get("a") is None
                assert not space.put("b", b"y")
                assert time.monotonic() - started < 2 * (0.3 + GRACE_S)
        wait_until(lambda: space.get("a") == b"x", "the store serves again")


@pytest.mark.parametrize("deadline_ms", [0, -5, float("nan")])
def test_a_call_without_time_answers_as_a_miss(space: Namespace, deadline_ms: float) -> None:
    assert space.put("a", b"x")
    assert space.get("a", deadline_ms=deadline_ms) is None
    assert not space.put("b", b"x", deadline_ms=deadline_ms)


def test_a_flipped_bit_on_the_wire_is_a_miss_and_is_counted(tmp_path: Path, proxy: TcpProxy) -> None:
    value = random.Random(9).randbytes(64 << 10)
    with running_cluster(tmp_path, advertise_port=proxy.port) as store:
        proxy.target_port = store.segments["segment"].wait_event("listening")["port"]
        with Client(store.masters, deadline_ms=3000, same_host=False) as client:
            space = client.namespace("n")
            assert space.put("a", value)
            assert space.get("a") == value
            proxy.flip(
                TO_CLIENT, len(value) + 4096
            )  # behind what this connection has carried: in the next value
            flipped_get = space.get("a")
            assert proxy.flips_done == 1
            assert flipped_get is None
            assert client.stats()["digest_mismatches"] > 0
            wait_until(lambda: space.get("a") == value, "a healthy object is readable again")


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    opened = TcpProxy()
    yield opened
    opened.close()


def test_configuration_errors_name_the_option_before_anything_is_connected() -> None:
    with pytest.raises(ConfigError, match=r"^deadline_ms: "):
        Client("127.0.0.1:1", deadline_ms=0)
    with Client("127.0.0.1:1") as client, pytest.raises(ConfigError, match=r"^namespace: "):
        client.namespace("")
