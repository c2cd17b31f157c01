"""Calls that carry much over a link that is slow, and over one on which nothing moves any more."""

from __future__ import annotations

import math
import os
import time
from array import array
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from kvstore_client import WHOLE, Client, Pieces, SharedBuffer
from kvstore_client.namespace import Pages
from kvstore_client.protocol import Status
from support.processes import Cluster
from support.running_cluster import running_cluster
from support.tcp_proxy import TO_CLIENT, TO_SERVER, TcpProxy

pytestmark = pytest.mark.alone

PAGES, PAGE_BYTES = 48, 1 << 20
RATE = 25e6  # bytes a second: the batch takes 2 s, and what the kernels hold of it for others 0.3 s
STALL_MS = 1000
GRACE_S = 0.5  # on a busy machine


class Rig(NamedTuple):
    client: Client
    pages: Pages
    memory: SharedBuffer
    pieces: Pieces
    proxy: TcpProxy

    def put(self, hashes: bytes, deadline_ms: int, stall_ms: int = 0) -> bytes:
        return self.pages.put_pieces(hashes, self.pieces, deadline_ms=deadline_ms, stall_ms=stall_ms)

    def get(self, hashes: bytes, deadline_ms: int, stall_ms: int = 0) -> bytes:
        return self.pages.get_pieces(hashes, self.pieces, deadline_ms=deadline_ms, stall_ms=stall_ms)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, TcpProxy]]:
    proxy = TcpProxy()
    try:
        with running_cluster(
            tmp_path_factory.mktemp("slow"), capacity="512MiB", advertise_port=proxy.port
        ) as running:
            proxy.target_port = running.segments["segment"].wait_event("listening")["port"]
            yield running, proxy
    finally:
        proxy.close()


@pytest.fixture
def rig(store: tuple[Cluster, TcpProxy]) -> Iterator[Rig]:
    running, proxy = store
    with Client(running.masters, same_host=False, deadline_ms=10_000) as client:
        memory = SharedBuffer(PAGES * PAGE_BYTES)
        addresses = array("Q", (memory.address + at * PAGE_BYTES for at in range(PAGES)))
        pieces = Pieces.from_pointers(addresses, array("Q", [PAGE_BYTES]) * PAGES, 1)
        yield Rig(client, client.namespace("slow").pages(shards=[WHOLE]), memory, pieces, proxy)
    proxy.release()
    for direction in (TO_CLIENT, TO_SERVER):
        proxy.pace(direction, math.inf)


def all_are(statuses: bytes, status: Status) -> bool:
    return statuses == bytes([status]) * PAGES


def test_a_batch_takes_as_long_as_its_bytes_while_they_move(rig: Rig) -> None:
    hashes = os.urandom(32 * PAGES)
    rig.proxy.pace(TO_SERVER, RATE)
    rig.proxy.pace(TO_CLIENT, RATE)
    for call in (rig.put, rig.get):
        started = time.monotonic()
        assert all_are(call(hashes, 5000, STALL_MS), Status.OK)
        assert time.monotonic() - started > STALL_MS / 1000, "the link is not slow: the test shows nothing"
    assert not all_are(rig.get(hashes, STALL_MS), Status.OK)
    assert not all_are(rig.put(os.urandom(32 * PAGES), STALL_MS), Status.OK)


def test_a_batch_of_which_nothing_moves_any_more_ends_as_one_that_carries_nothing(rig: Rig) -> None:
    hashes = os.urandom(32 * PAGES)
    assert all_are(rig.put(hashes, 5000, STALL_MS), Status.OK)
    for direction, call, keys in ((TO_CLIENT, rig.get, hashes), (TO_SERVER, rig.put, os.urandom(32 * PAGES))):
        rig.proxy.stall(direction, 0)
        started = time.monotonic()
        assert not all_are(call(keys, 5000, STALL_MS), Status.OK)
        assert time.monotonic() - started < STALL_MS / 1000 + GRACE_S
        rig.proxy.release()


def test_a_link_that_hangs_amid_a_batch_ends_it_so_long_after_its_last_byte(rig: Rig) -> None:
    hashes = os.urandom(32 * PAGES)
    assert all_are(rig.put(hashes, 5000, STALL_MS), Status.OK)
    rig.proxy.pace(TO_CLIENT, RATE)
    rig.proxy.stall(TO_CLIENT, 8 * PAGE_BYTES)  # on each of the connections
    started = time.monotonic()
    statuses = rig.get(hashes, 5000, STALL_MS)
    seconds = time.monotonic() - started
    assert Status.OK in statuses, "what came before it hung counts"
    assert not all_are(statuses, Status.OK)
    assert seconds < PAGES * PAGE_BYTES / RATE + STALL_MS / 1000 + GRACE_S


def test_a_batch_that_was_too_much_for_its_time_does_not_keep_the_next_from_a_segment_that_works(
    rig: Rig,
) -> None:
    hashes = os.urandom(32 * PAGES)
    assert all_are(rig.put(hashes, 5000, STALL_MS), Status.OK)
    rig.proxy.pace(TO_CLIENT, RATE)
    statuses = rig.get(hashes, 1200, STALL_MS)
    assert not all_are(statuses, Status.OK)
    assert rig.pages.prefix_exists_hashes(hashes[:32], deadline_ms=5000) == 1
    counters = rig.client.stats()
    assert (counters["breaker_open"], counters["breaker_refusals"]) == (0, 0)
    assert counters["troubles"] == {}
