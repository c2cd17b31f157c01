"""The client: one per process is enough, any number of threads may use it."""

import atexit
import logging
import os
import threading
import weakref
from typing import Any

from kvstore_client import _native
from kvstore_client.config import ClientConfig, MasterList
from kvstore_client.errors import ConfigError
from kvstore_client.identity import Identity, named_identity
from kvstore_client.namespace import Namespace
from kvstore_client.signal_handlers import is_from_signal_handler
from kvstore_client.throttle import ThrottledLog
from kvstore_client.troubles import Trouble, TroubleLog

logger = logging.getLogger("kvstore_client")

_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


def _begin_clients_in_forked_child() -> None:
    for client in list(_clients):
        client._begin_in_forked_child()


os.register_at_fork(after_in_child=_begin_clients_in_forked_child)
# At exit memory goes while daemon threads may still be in calls that write to it: those end first, within this time.
atexit.register(_native.end_other_threads_calls, 1000)


class Client:
    """Access to a cluster through any of its masters. Connects when first used, never in the constructor.

    The constructor raises ConfigError for a setting that can't work. After that nothing raises: a store that
    is unreachable, slow or closed answers as an empty one does, and no call outlasts its deadline
    (`deadline_ms`, unless the call names its own). What a signal handler raises passes, and ends a call that
    waits. A forked child's client works by itself: it connects anew, and its counters begin at 0.

    `masters`: "host:port,host:port" of their directory ports, or a list; without it the environment variable
    KVSTORE_MASTERS. `options` are the fields of `ClientConfig`, each with its meaning and bounds there.
    """

    def __init__(self, masters: MasterList | None = None, **options: Any) -> None:
        self._start(ClientConfig.of(masters, **options))

    @classmethod
    def from_config(cls, config: ClientConfig) -> "Client":
        """A client with settings that have been checked already."""
        client = cls.__new__(cls)
        client._start(config)
        return client

    def _start(self, config: ClientConfig) -> None:
        self.config = config
        self._closed = False
        self._namespaces: dict[int, tuple[bytes, str]] = {}
        self._handles_end = 0  # all below were given out
        try:
            self._begin()
        except RuntimeError as error:
            option, _, text = str(error).partition(": ")
            raise ConfigError(option, text) from error
        _clients.add(self)

    def _begin(self) -> None:
        """What a process has for itself. RuntimeError where a transport is required and can't be had."""
        config = self.config
        self._log = ThrottledLog(logger)
        self._lock = threading.RLock()  # a signal handler may call in the middle of a call
        self._own_counters = {"bad_arguments": 0, "surprises": 0}
        self._trouble_log = TroubleLog(logger)
        self._trouble_changes = 0
        self._native = _native.PageClient(
            list(config.masters),
            token=config.token,
            name=config.name,
            connections_per_peer=config.connections,
            copy_threads=config.copy_threads,
            connect_timeout_ms=config.connect_timeout_ms,
            run_bytes=config.run_bytes,
            location_cache_entries=config.location_cache_entries,
            **{name: getattr(config, name) for name, _, _ in _native.transport_options()},
        )
        for transport, why in self._native.transport_refusals.items():
            logger.error("kvstore: no %s, pages go another way: %s", transport, why)

    def _begin_in_forked_child(self) -> None:
        """Connections, threads and locks are the parent's: this process connects for itself, when it first calls.
        Memory that the parent registered is not known here; puts from it are sent.
        """
        if self._closed:
            return
        try:
            self._begin()
        except RuntimeError as error:  # the inherited one answers as an empty store does
            logger.error("kvstore: no pages in this forked process: %s", error)
            return
        for handle, (identity, name) in self._namespaces.items():
            self._native.restore_namespace(handle, identity, name)
        last = self._handles_end - 1
        if last >= 0 and last not in self._namespaces:  # closed, and not to be given out again
            self._native.restore_namespace(last, b"closed", "")
            self._native.close_namespace(last)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def namespace(self, identity: Identity | str) -> Namespace:
        """The namespace of an identity, or of a plain name. ConfigError when it can't be one. Connects
        to nothing yet.
        """
        if isinstance(identity, Identity):
            encoded, name = identity.canonical(), identity.name
        else:
            encoded, name = named_identity(identity), identity
        with self._lock:  # against a close() of the same one
            try:
                _, handle = self._native.open_namespace(encoded, name, 0)
            except ValueError as error:
                raise ConfigError("namespace", str(error)) from None
            self._namespaces[handle] = (encoded, name)
            self._handles_end = max(self._handles_end, handle + 1)
        return Namespace(self, handle, encoded, name)

    def _close_namespace(self, handle: int) -> None:
        with self._lock:
            self._native.close_namespace(handle)
            self._namespaces.pop(handle, None)

    def register_fd(self, address: int, size_bytes: int, fd: int) -> bool:
        """Says that memory [address, +size_bytes) is the file `fd` from its start, so that segments on
        this host copy from it directly.
        """
        try:
            return self._native.register_fd(address, size_bytes, fd)
        except Exception as error:
            self._surprise("register_fd", error)
            return False

    def register_memory(self, address: int, size_bytes: int) -> bool:
        """Says that memory [address, +size_bytes) stays in place until `unregister`, so that RDMA, where it is
        on, moves pages from and to it directly.
        """
        try:
            return self._native.register_memory(address, size_bytes)
        except Exception as error:
            self._surprise("register_memory", error)
            return False

    def unregister(self, address: int) -> None:
        """Takes back register_fd or register_memory."""
        try:
            self._native.unregister(address)
        except Exception as error:
            self._surprise("unregister", error)

    def stats(self) -> dict[str, Any]:
        """Counters since the client was made (docs/metrics.md lists the names), and `troubles`: what is wrong with
        which peer now, and the remedy, by peer.
        """
        with self._lock:
            own = dict(self._own_counters)
        troubles = {subject: str(trouble) for subject, trouble in self._troubles().items()}
        return {**self._native.counters(), **own, "troubles": troubles}

    def segments(self) -> list[dict[str, Any]]:
        """The segments as the client knows them."""
        return self._native.segment_map()

    def close(self) -> None:
        """Ends connections and threads; waits at most for calls in flight. Idempotent. Later calls
        answer as an empty store does.
        """
        self._closed = True
        self._native.close()

    def _troubles(self) -> dict[str, Trouble]:
        return {
            subject: Trouble.of(subject, kind, said) for subject, kind, said, _ in self._native.troubles()
        }

    def _say_troubles(self) -> None:
        """After each call: cheap while nothing has changed."""
        changes = self._native.trouble_changes
        if changes != self._trouble_changes:
            self._trouble_changes = changes
            self._trouble_log.update(self._troubles())

    def _bad_argument(self, verb: str, error: Exception) -> None:
        with self._lock:
            self._own_counters["bad_arguments"] += 1
        self._log.log(
            logging.ERROR,
            verb + type(error).__name__,
            "%s: bad argument, answered as a miss: %s",
            verb,
            error,
        )

    def _surprise(self, verb: str, error: Exception) -> None:
        """To be called where `error` is handled. Raises it again when it is the caller's."""
        if is_from_signal_handler(error):
            raise error
        with self._lock:
            self._own_counters["surprises"] += 1
        self._log.log(logging.ERROR, verb, "%s: unexpected failure, answered as a miss", verb, exc_info=True)
