"""Peers that are out to hurt a segment or a master, with or without a token, many at a time: what is stored stays, memory is
bounded, and a client that means well is served meanwhile."""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.hostile_peers import (
    ON_ANY_PORT,
    ON_DATA_PORT,
    AttackMaker,
    Target,
    connect_flood,
    resident_anonymous_bytes,
    silent_strangers,
    slow_frames,
    sparse_buffers,
)
from kvstore_client import Client
from kvstore_client.protocol.link import LIMITS
from support.processes import Cluster, ServerProcess, segment_metrics
from support.waiting import wait_until

POOL_BYTES = 256 << 20
STORED, STORED_BYTES = 500, 200_000
# What a server's own memory may grow by: threads, buffers and bookkeeping of five hundred connections.
GROWTH_BYTES_MAX = 96 << 20
# Calls of an honest client while the attack is on.
ROUNDS = 5
PAGES, PAGE_BYTES = 8, 64_000

numbers = itertools.count()


class Attacked:
    """A cluster of one segment, with pages in it that must stay."""

    def __init__(self, directory: Path) -> None:
        self.cluster = Cluster(directory, capacity=str(POOL_BYTES))
        self.cluster.start_master()
        self.segment = self.cluster.start_segment()
        self.client = Client(self.cluster.masters, deadline_ms=20_000, same_host=False)
        space = self.client.namespace("stored")
        self.pages = space.pages()
        self.keys = page_keys(STORED)
        for first in range(0, STORED, 100):
            part = self.keys[first : first + 100]
            assert all(self.pages.batch_put(part, [bytes(STORED_BYTES)] * len(part)))
        ports = self.segment.wait_event("listening")
        hashes = tuple(bytes.fromhex(key) for key in self.keys)
        self.target = Target(ports["port"], ports["unix_path"], bytes.fromhex(space.namespace_id), hashes)

    def close(self) -> None:
        self.client.close()
        self.cluster.close()

    def metric(self, name: str) -> float:
        return segment_metrics(self.segment)[name]

    def limit_used(self, name: str) -> float:
        return self.metric(f'limit_used{{limit="{name}"}}')

    def serve_a_client(self, **patience: int) -> None:
        """A put, a look and a get over connections of their own, and nothing left of them."""
        with Client(self.cluster.masters, deadline_ms=20_000, same_host=False, **patience) as client:
            pages = client.namespace("stored").pages()
            keys, values = page_keys(PAGES), [bytes([number]) * PAGE_BYTES for number in range(PAGES)]
            assert all(pages.batch_put(keys, values))
            assert all(pages.batch_exists(keys))
            assert pages.batch_get(keys) == values
            for key in keys:
                pages.remove(key)


def page_keys(count: int) -> list[str]:
    return [hashlib.sha256(b"%d" % next(numbers)).hexdigest() for _ in range(count)]


def patience(make: AttackMaker) -> dict[str, int]:
    """Five hundred connections that send all that they can leave a busy machine less time than a client's own default allows a
    connect; those that say nothing must not be felt."""
    return {} if make in (connect_flood, silent_strangers) else {"connect_timeout_ms": 10_000}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    running = Attacked(tmp_path_factory.mktemp("attacked"))
    try:
        yield running
    finally:
        running.close()
        print(running.cluster.logs())


@pytest.mark.parametrize("make", ON_DATA_PORT, ids=lambda make: make.__name__)
def test_an_attack_on_a_segment_costs_no_page_little_memory_and_no_client_its_calls(
    attacked: Attacked, make: AttackMaker
) -> None:
    evicted, before = attacked.metric("evicted_objects"), resident_anonymous_bytes(attacked.segment.pid)
    with make(attacked.target) as attack:
        for _ in range(ROUNDS):
            attacked.serve_a_client(**patience(make))
        wait_until(lambda: attack.opened > 0, "the attack begins")
        assert resident_anonymous_bytes(attacked.segment.pid) - before < GROWTH_BYTES_MAX
        assert attacked.limit_used("writing_bytes") <= POOL_BYTES // 4
        assert attacked.limit_used("held_bytes") <= POOL_BYTES // 4
    assert attacked.metric("evicted_objects") == evicted
    assert all(attacked.pages.batch_exists(attacked.keys, pin_ms=1))
    wait_until(
        lambda: attacked.limit_used("writing_bytes") == 0, "nothing is left of the attack's puts", 60.0
    )
    wait_until(lambda: attacked.limit_used("connections") < 50, "nor of its connections", 60.0)


# Nobody says HELLO to the control port, so nothing can come after it there.
ON_A_MASTER = [("directory_port", make) for make in ON_ANY_PORT] + [
    ("control_port", make) for make in ON_ANY_PORT if make is not slow_frames
]


@pytest.mark.parametrize(("port", "make"), ON_A_MASTER, ids=lambda each: getattr(each, "__name__", each))
def test_an_attack_on_a_master_costs_little_memory_and_no_client_its_calls(
    attacked: Attacked, port: str, make: AttackMaker
) -> None:
    master = attacked.cluster.master
    before = resident_anonymous_bytes(master.pid)
    with make(Target(attacked.cluster.master_ports[port])) as attack:
        for _ in range(ROUNDS):
            attacked.serve_a_client(**patience(make))
        wait_until(lambda: attack.opened > 0, "the attack begins")
        assert resident_anonymous_bytes(master.pid) - before < GROWTH_BYTES_MAX


def test_limits_that_are_reached_are_told_by_the_log_and_by_admin_segments(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, capacity="64MiB")
    try:
        cluster.start_master()
        segment = cluster.start_segment(options=("--registered-buffers-max=1",))
        ports = segment.wait_event("listening")
        with sparse_buffers(Target(ports["port"], ports["unix_path"]), 3):
            line = json.loads(wait_until(lambda: reached(segment), "the log says so", timeout_s=30))
            assert (line["limit"], line["most"]) == ("registered_buffers", 1)
            assert "registered_buffers_max" in line["remedy"]
            wait_until(
                lambda: "registered_buffers (refused" in admin(cluster, "segments"), "the master has heard"
            )
            assert len(admin(cluster, "segments", "--limits").splitlines()) == 1 + len(LIMITS)
    finally:
        cluster.close()


def reached(segment: ServerProcess) -> str:
    """The first line of the log that tells of a limit; empty while there is none."""
    return next((line for line in segment.log().splitlines() if '"limit_reached"' in line), "")


def admin(cluster: Cluster, *arguments: str) -> str:
    command = [sys.executable, "-m", "kvstore.cli.main", "admin", *arguments, f"--master={cluster.control}"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
