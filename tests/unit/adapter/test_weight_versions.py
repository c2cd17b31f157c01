"""Weights that are exchanged while the engine runs: each version has its own pages, and pages of unknown version are
not stored.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hicache_adapter import weight_versions
from hicache_adapter.page_store import PageStore
from hicache_adapter.weight_versions import VersionedStore, WeightVersions, served_weights
from kvstore_client import WHOLE, Client, Identity
from kvstore_client.throttle import ThrottledLog
from support.waiting import wait_until

NOWHERE = "127.0.0.1:1"
IDENTITY = Identity("acme/model", "bfloat16", "bfloat16", "MHA", "page_first", 64)


class Engine:
    """What SGLang says it serves."""

    def __init__(self) -> None:
        self.version = ""
        self.path = "/models/1"
        self.weights = WeightVersions(
            ThrottledLog(logging.getLogger("hicache_adapter")), lambda: (self.version, self.path)
        )

    def stores(self) -> tuple[str, bool]:
        """As the backend does it in a call of set."""
        version = self.weights.named()
        assert version is not None
        return version, self.weights.may_store(version)

    def are_named(self) -> bool:
        """Whether anything may be stored or loaded."""
        return self.weights.named() is not None


@pytest.fixture
def versioned_store() -> Iterator[VersionedStore]:
    with Client(NOWHERE) as client:
        log = ThrottledLog(logging.getLogger("hicache_adapter"))

        def make(identity: Identity) -> PageStore:
            return PageStore(client, identity, [WHOLE], log)

        yield VersionedStore(IDENTITY, make)


class CountedLock:
    """A lock that counts who has asked for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asked: list[int] = []  # appending is atomic

    def __enter__(self) -> None:
        self.asked.append(threading.get_ident())
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def in_new_thread(call: Callable[[], tuple[str, bool]]) -> tuple[str, bool]:
    """As SGLang's storage threads after a flush."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result(timeout=10)


def test_a_thread_that_called_before_an_update_stores_nothing_after_it() -> None:
    engine = Engine()
    with ThreadPoolExecutor(1) as storage_thread:
        assert storage_thread.submit(engine.stores).result(timeout=10) == ("", True)
        engine.version = "2"
        assert storage_thread.submit(engine.stores).result(timeout=10) == ("2", False)
        assert in_new_thread(engine.stores) == ("2", True)


def test_a_thread_that_was_there_in_between_stores_nothing_when_the_old_weights_come_back() -> None:
    engine = Engine()
    with ThreadPoolExecutor(1) as storage_thread, ThreadPoolExecutor(1) as idle_meanwhile:
        for thread in (storage_thread, idle_meanwhile):
            assert thread.submit(engine.stores).result(timeout=10) == ("", True)
        engine.version = "2"
        assert storage_thread.submit(engine.stores).result(timeout=10) == ("2", False)
        engine.version = ""
        for thread in (storage_thread, idle_meanwhile):
            assert thread.submit(engine.stores).result(timeout=10) == ("", False)
        assert in_new_thread(engine.stores) == ("", True)


@pytest.mark.parametrize("seen_by", ["a call of another thread", "a look", "the start"])
def test_a_thread_that_calls_for_the_first_time_after_an_update_is_as_old_as_it_was_seen_to_be(
    seen_by: str,
) -> None:
    engine = Engine()
    with ThreadPoolExecutor(1) as backup_thread:
        backup_thread.submit(int).result(timeout=10)  # started, and has stored nothing yet
        if seen_by == "a look":
            engine.weights.look()
        elif seen_by == "the start":
            engine.weights = WeightVersions(
                ThrottledLog(logging.getLogger()), lambda: (engine.version, engine.path)
            )
        else:
            assert in_new_thread(engine.stores) == ("", True)
        engine.version = "2"
        assert backup_thread.submit(engine.stores).result(timeout=10) == ("2", False)
        assert in_new_thread(engine.stores) == ("2", True)


def test_threads_that_are_gone_are_forgotten() -> None:
    engine = Engine()
    for _ in range(50):
        assert in_new_thread(engine.stores) == ("", True)
    gc.collect()
    # One that has just ended may still be held by whoever waited for it.
    assert len(engine.weights._first_versions) <= len(threading.enumerate()) + 2


def test_the_refusal_says_once_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()
    engine.stores()
    engine.version = "2"
    with caplog.at_level(logging.WARNING, "hicache_adapter"):
        assert [engine.stores()[1] for _ in range(10)] == [False] * 10
    (record,) = caplog.records
    for said in ("version '2'", "/flush_cache", "decode instance", "restart it"):
        assert said in record.getMessage()


def test_weights_from_another_path_without_a_version_of_their_own_are_not_named() -> None:
    engine = Engine()
    assert engine.are_named()
    engine.path = "/models/2"
    assert not engine.are_named()
    engine.version = "2"  # named afterwards, or a moment later: SGLang changes one after the other
    assert engine.are_named()
    engine.path = "/models/3"
    assert not engine.are_named()
    engine.path, engine.version = "/models/1", ""
    assert engine.are_named(), "the first weights are back, under their own name"
    engine.path, engine.version = "/models/2", "2"
    assert engine.are_named()
    engine.path = ""
    assert engine.are_named(), "an engine that does not say"


def test_weights_without_a_name_are_said_once_and_no_change_that_gets_its_name_at_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine()
    with caplog.at_level(logging.ERROR, "hicache_adapter"):
        engine.path = "/models/2"
        assert not engine.are_named()
        engine.version = "2"
        assert engine.are_named()
        assert not caplog.records
        monkeypatch.setattr(weight_versions, "_SAID_AFTER_S", 0.0)
        engine.path = "/models/3"
        assert not any(engine.are_named() for _ in range(10))
    (record,) = caplog.records
    for said in ("/models/3", "/models/2", "/update_weight_version", "/flush_cache"):
        assert said in record.getMessage()


def test_paths_of_old_versions_do_not_pile_up() -> None:
    engine = Engine()
    for version in range(3000):
        engine.version, engine.path = str(version), f"/models/{version}"
        assert engine.are_named()
    assert len(engine.weights._paths) <= 1024


def test_each_version_has_an_identity_of_its_own_and_none_is_the_one_of_unversioned_weights(
    versioned_store: VersionedStore,
) -> None:
    assert versioned_store.of("").identity == IDENTITY
    digests = {version: versioned_store.of(version).identity_digest for version in ("", "1", "2")}
    assert len(set(digests.values())) == 3
    assert {version: versioned_store.of(version).identity_digest for version in digests} == digests


def test_threads_that_meet_a_new_version_together_share_its_store() -> None:
    made: list[Identity] = []
    with Client(NOWHERE) as client:

        def make(identity: Identity) -> PageStore:
            made.append(identity)
            # Until the others have seen that there is none, and wait for this one.
            wait_until(lambda: len(lock.asked) == 8, "the others have come")
            return PageStore(client, identity, [WHOLE], ThrottledLog(logging.getLogger("hicache_adapter")))

        versioned_store = VersionedStore(IDENTITY, make)
        lock = versioned_store._lock = CountedLock()  # type: ignore[assignment]

        with ThreadPoolExecutor(8) as threads:
            asked = [threads.submit(versioned_store.of, "7") for _ in range(8)]
            assert len({id(ask.result(timeout=20)) for ask in asked}) == 1
    assert len(made) == 1


def test_stores_of_old_versions_do_not_pile_up(versioned_store: VersionedStore) -> None:
    for version in range(5000):  # more than a client keeps namespaces
        versioned_store.of(str(version))
    assert len(versioned_store._stores) <= 8
    assert versioned_store.of("4999") is versioned_store.of("4999")


def test_outside_of_an_engine_the_weights_have_no_version() -> None:
    assert served_weights()[0] == ""


@pytest.mark.parametrize(("told", "version"), [("default", ""), (None, ""), ("", ""), ("7", "7")])
def test_the_engines_word_for_no_version_is_none(
    told: str | None, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = types.ModuleType("sglang.srt.runtime_context")
    context.get_serving = lambda: types.SimpleNamespace(weight_version=told)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    assert served_weights()[0] == version


def test_where_the_weights_came_from_is_what_the_engine_says_now(monkeypatch: pytest.MonkeyPatch) -> None:
    context = types.ModuleType("sglang.srt.runtime_context")
    context.get_model = lambda: types.SimpleNamespace(model_path="/models/9")  # type: ignore[attr-defined]
    assert served_weights()[1] == ""
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    assert served_weights()[1] == "/models/9"
