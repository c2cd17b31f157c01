"""Clearing what is stored: what is owed, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from hicache_adapter import page_store
from hicache_adapter.deadlines import Deadline
from hicache_adapter.page_store import PageStore
from kvstore_client import WHOLE, Client, Identity
from kvstore_client.protocol import Status
from kvstore_client.throttle import ThrottledLog

KEYS = ["ab" * 32]


class Master:
    """Answers for the network: what a bump comes to, and every page is there."""

    def __init__(self, store: PageStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.status: int = Status.OK
        self.bumps = 0
        monkeypatch.setattr(store._namespace, "try_clear", self._bump)
        monkeypatch.setattr(
            store._pages, "prefix_exists_hashes", lambda hashes, deadline_ms: len(hashes) // 32
        )

    def _bump(self, *, deadline_ms: float | None = None) -> int:
        self.bumps += 1
        return self.status


@pytest.fixture
def store() -> Iterator[PageStore]:
    with Client("127.0.0.1:1") as client:
        identity = Identity("acme/model", "bfloat16", "bfloat16", "MHA", "page_first", 64)
        yield PageStore(client, identity, [WHOLE], ThrottledLog(logging.getLogger("hicache_adapter")))


def exists(store: PageStore) -> int:
    return store.exists(KEYS, Deadline(1000))


@pytest.mark.parametrize("status", [Status.UNAUTHORIZED, Status.BAD_REQUEST])
def test_a_clear_that_is_refused_says_that_nothing_was_cleared_and_pages_are_served(
    store: PageStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, status: Status
) -> None:
    master = Master(store, monkeypatch)
    master.status = status
    with caplog.at_level(logging.INFO, "hicache_adapter"):
        assert not store.clear(Deadline(1000))
        assert exists(store) == exists(store) == 1
    assert master.bumps == 1
    (record,) = caplog.records
    for said in (status.name, "NOT cleared", "role engine or admin", "kvstore admin clear"):
        assert said in record.getMessage()


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.TIMEOUT, Status.NOT_LEADER, Status.INTERNAL])
def test_a_clear_that_reached_no_master_is_owed_until_one_has_done_it_or_refused(
    store: PageStore, monkeypatch: pytest.MonkeyPatch, status: Status
) -> None:
    monkeypatch.setattr(page_store, "_CLEAR_RETRY_S", 0.0)
    master = Master(store, monkeypatch)
    for end in (Status.OK, Status.UNAUTHORIZED):
        master.status = status
        assert not store.clear(Deadline(1000))
        assert exists(store) == exists(store) == 0
        master.status = end
        bumps = master.bumps
        assert exists(store) == 0  # it had its time for that
        assert exists(store) == 1
        assert master.bumps == bumps + 1
