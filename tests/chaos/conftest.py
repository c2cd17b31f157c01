"""A store of real processes for each test, and nothing of it left afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore_client import Client
from support.processes import Cluster
from support.tcp_proxy import TcpProxy
from support.workers import Worker


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A master that is running; segments are started by the test."""
    store = Cluster(tmp_path)
    try:
        store.start_master()
        yield store
    finally:
        store.close()
        print(store.logs())  # pytest shows it when the test fails


@pytest.fixture
def start_worker(cluster: Cluster) -> Iterator[Callable[..., Worker]]:
    """Starts a client process that puts and gets: start_worker(name, **options)."""
    workers: list[Worker] = []

    def start(name: str, **options: Any) -> Worker:
        worker = Worker(cluster.masters, name, **options)
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.close()


@pytest.fixture
def connect(cluster: Cluster) -> Iterator[Callable[..., Client]]:
    """A fresh client in this process: connect(**options)."""
    clients: list[Client] = []

    def new(**options: Any) -> Client:
        client = Client(cluster.masters, **{"deadline_ms": 2000, **options})
        clients.append(client)
        return client

    yield new
    for client in clients:
        client.close()


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    """Something to put between TCP clients and a segment; set its target_port."""
    between = TcpProxy()
    yield between
    between.close()
