"""Which weights the engine serves, while they change under it: one store for each version, and nothing stored of
pages whose version can't be told.
"""

import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hicache_adapter.page_store import PageStore
from kvstore_client import Identity
from kvstore_client.throttle import ThrottledLog

UNVERSIONED = "default"  # SGLang's word for weights that nobody has given a version

logger = logging.getLogger("hicache_adapter")


def served_version() -> str:
    """The version of the weights that this process serves now; empty where they have none. Cheap enough for every
    call. SGLang changes it in the scheduler's process when the weights are updated.
    """
    settings = _settings()
    version = str(getattr(settings, "weight_version", None) or "")
    return "" if version == UNVERSIONED else version


def _settings() -> Any:
    """Looks only at modules that SGLang has imported itself: a failing import is slow."""
    for module_name, getter in (
        ("sglang.srt.runtime_context", "get_serving"),
        ("sglang.srt.server_args", "get_global_server_args"),  # older versions: as it was at the start
    ):
        module = sys.modules.get(module_name)
        if module is not None:
            try:
                return getattr(module, getter)()
            except Exception:
                continue
    return None


class WeightVersions:
    """Asked by every call, from any thread."""

    def __init__(self, log: ThrottledLog, served: Callable[[], str] = served_version) -> None:
        self._log = log
        self._served = served
        self._thread = threading.local()

    def current(self) -> str:
        """The version whose pages this call is about."""
        version = self._served()
        if not hasattr(self._thread, "first_version"):
            self._thread.first_version = version
        return version

    def may_store(self, version: str) -> bool:
        """Whether pages that the calling thread brings were computed with this version.

        Pages wait in SGLang's queues and caches, so those brought after an update may be older than it. When
        SGLang flushes its caches it drops the queues and starts its storage threads anew: a thread that has called
        before the update brings pages of unknown version.
        """
        if version == self._thread.first_version:
            return True
        self._log.log(
            logging.WARNING,
            f"weights {version}",
            "kvstore: the weights changed from version %r to %r and SGLang's caches were not flushed: pages in "
            "them may be of either, so none is stored; POST /flush_cache",
            self._thread.first_version or UNVERSIONED,
            version or UNVERSIONED,
        )
        return False


class VersionedStore:
    """The stores of one pool's pages: one for each version of the weights, made when it is first asked for."""

    _KEPT_MAX = 8

    def __init__(self, identity: Identity, make: Callable[[Identity], PageStore]) -> None:
        self._identity = identity
        self._make = make
        self._lock = threading.Lock()
        self._stores: dict[str, PageStore] = {}

    def of(self, version: str) -> PageStore:
        """The store of the pages that these weights have computed."""
        store = self._stores.get(version)
        return self._add(version) if store is None else store

    def _add(self, version: str) -> PageStore:
        with self._lock:
            if version in self._stores:
                return self._stores[version]
            store = self._make(replace(self._identity, weight_version=version))
            if self._stores:
                logger.info(
                    "kvstore: weights of version %r: identity %s",
                    version or UNVERSIONED,
                    store.identity_digest,
                )
            stores = [*self._stores.items(), (version, store)]
            dropped, kept = stores[: -self._KEPT_MAX], stores[-self._KEPT_MAX :]
            self._stores = dict(kept)  # a new one: other threads are reading the old one
            for _, old in dropped:
                old.close()
            return store
