"""Which weights the engine serves, while they change under it: one store for each version, and nothing stored of
pages whose version can't be told.
"""

import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from hicache_adapter.page_store import PageStore
from kvstore_client import Identity
from kvstore_client.throttle import ThrottledLog

UNVERSIONED = "default"  # SGLang's word for weights that nobody has given a version

_PATHS_MAX = 1024
_SAID_AFTER_S = 5.0

logger = logging.getLogger("hicache_adapter")


def served_weights() -> tuple[str, str]:
    """The version of the weights that this process serves now, and where they were loaded from. Empty where they have no
    version, or SGLang does not say. Cheap enough for every call. SGLang changes both in the scheduler's process when the
    weights are updated, the path with an update from disk alone.

    Looks only at modules that SGLang has imported itself: a failing import is slow.
    """
    context = sys.modules.get("sglang.srt.runtime_context")
    version = path = None
    if context is not None:
        try:
            version, path = context.get_serving().weight_version, context.get_model().model_path
        except Exception:  # older versions, and before SGLang has published its settings
            version, path = _one_by_one()
    elif "sglang.srt.server_args" in sys.modules:
        version, path = _one_by_one()
    version, path = str(version or ""), str(path or "")
    return "" if version == UNVERSIONED else version, path


def _one_by_one() -> tuple[Any, Any]:
    """Each from where it is known."""
    version = getattr(_settings("get_serving"), "weight_version", None)
    return version, getattr(_settings("get_model"), "model_path", None)


def _settings(getter_name: str) -> Any:
    for module_name, getter in (
        ("sglang.srt.runtime_context", getter_name),
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
    """Asked by every call, from any thread.

    Pages wait in SGLang's queues and caches, so those brought after an update may be older than it. When SGLang flushes
    its caches it drops the queues and starts its storage threads anew. So a thread that was there when other weights
    were served brings pages of unknown version, for good: weights that come back don't tell which of its pages are
    theirs.

    Which threads were there is seen when a thread calls for the first time, on `look`, and when a new version is met;
    SGLang starts its storage threads together, so one that calls shows the others. What can't be seen: threads of which
    none has called before an update that was not flushed, and weights that came and went without a call in between.
    """

    def __init__(
        self,
        log: ThrottledLog,
        served: Callable[[], tuple[str, str]] = served_weights,
    ) -> None:
        self._log = log
        self._served = served
        self._paths: dict[str, str] = {}  # version -> where its weights came from
        self._unnamed_since = math.inf
        self._calling = threading.local()
        self._lock = threading.Lock()
        # The version that was served when the thread was first seen; None: it has seen another one since.
        self._first_versions: WeakKeyDictionary[threading.Thread, str | None] = WeakKeyDictionary()
        self._last_version = ""
        self._times_seen = 0
        self.look()

    def current(self) -> str:
        """The version of the weights that are served."""
        version, _ = self._served()
        self._meet(version)
        return version

    def named(self) -> str | None:
        """The version whose pages this call is about; None where it does not tell which weights are served: after an
        update from another path that named none, nothing may be stored or loaded. The version is changed a moment after
        the path, so that is no news at once.
        """
        version, path = self._served()
        is_known = self._paths.get(version) == path and self._unnamed_since == math.inf
        if not is_known and not self._is_named(version, path):
            return None
        if version != self._last_version or not hasattr(self._calling, "is_known"):
            self._meet(version)
        return version

    def _meet(self, version: str) -> None:
        self._see(version)
        self._calling.is_known = True

    def _is_named(self, version: str, path: str) -> bool:
        known = self._paths.get(version)
        if known == path or not path:  # some don't say
            self._unnamed_since = math.inf
            return True
        if known is None:
            with self._lock:
                if len(self._paths) >= _PATHS_MAX:
                    self._paths.clear()
                self._paths[version] = path
            return True
        now = time.monotonic()
        self._unnamed_since = min(self._unnamed_since, now)
        if now - self._unnamed_since >= _SAID_AFTER_S:
            self._log.log(
                logging.ERROR,
                f"path {path}",
                "kvstore: the weights were updated from %s without a version (still %r, which was %s): nothing is stored or "
                'loaded. Name one: POST /update_weight_version {"new_version": ...}, then POST /flush_cache; where SGLang '
                "does not tell its scheduler the version, attach the storage anew",
                path,
                version or UNVERSIONED,
                known,
            )
        return False

    def look(self) -> None:
        """Sees which threads there are and which weights are served. To be called now and then by a thread that SGLang
        does not start anew.
        """
        version, path = self._served()
        self._is_named(version, path)
        self._see(version)

    def _see(self, version: str) -> None:
        with self._lock:
            self._last_version = version
            self._times_seen += 1
            for thread, first in list(self._first_versions.items()):
                if first != version:
                    self._first_versions[thread] = None
            for thread in threading.enumerate():
                self._first_versions.setdefault(thread, version)

    def may_store(self, version: str) -> bool:
        """Whether pages that the calling thread brings were computed with this version."""
        if getattr(self._calling, "may_store", None) == (self._times_seen, version):
            return True  # as it was found since anything was last seen
        with self._lock:
            if self._first_versions.get(threading.current_thread()) == version:
                self._calling.may_store = self._times_seen, version
                return True
        self._log.log(
            logging.WARNING,
            f"weights {version}",
            "kvstore: the weights changed while this thread ran (now version %r) and SGLang's caches were not flushed: "
            "pages in them may be of either, so none is stored; POST /flush_cache. A decode instance that offloads its "
            "KV cache keeps its threads in a flush: attach its storage anew, or restart it",
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
