"""A store, a server over it, and a raw peer, for the tests of the data port."""

from collections.abc import Iterator

import pytest

from kvstore_client import _native

from .peer import Peer, make_store


@pytest.fixture
def store() -> Iterator[_native.SegmentStore]:
    store = make_store()
    yield store
    store.close()


@pytest.fixture
def server(store: _native.SegmentStore) -> Iterator[_native.DataServer]:
    server = _native.DataServer(store, tcp_host="127.0.0.1")
    yield server
    server.stop()


@pytest.fixture
def peer(server: _native.DataServer) -> Iterator[Peer]:
    with Peer(("127.0.0.1", server.tcp_port)) as peer:
        yield peer
