"""Namespaces: identity -> current id. Part of the state machine; does no IO.

Only the current epoch's id is answered for. Opening and bumping are durable before they are answered;
requests for the same thing while it is being stored share one commit.
"""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from kvstore.common.identity import identity_hash, namespace_id
from kvstore.master.metadata.store import Delete, Put
from kvstore.master.state import layout
from kvstore.master.state.barriers import Barriers
from kvstore.master.state.changes import NamespaceRemoved, NamespaceStored
from kvstore.master.state.effects import (
    Commit,
    Effect,
    NamespaceGone,
    NamespaceReady,
    Report,
    RequestRefused,
    RetireNamespaces,
)
from kvstore.master.state.events import NamespaceBumped, NamespaceForgotten, NamespaceOpened
from kvstore.master.state.layout import ClusterRecord, NamespaceRecord
from kvstore_client.protocol import Status

# Ids of past epochs that BUMP recognises as "already bumped"; an older one is simply stale.
PAST_IDS_MAX = 65_536
PAST_EPOCHS_AFTER_RESTART = 16
WAITERS_MAX = 4096
NOBODY = 0  # has asked for it: the number of no request
# How often those are looked for that nobody uses, and how many are forgotten then.
EXPIRY_LOOK_S = 60.0
EXPIRED_MAX = 64


@dataclass(slots=True)
class NamespaceState:
    identity: bytes
    name: str
    epoch: int
    id: bytes
    stored: bool = True
    pending_epoch: int | None = None
    forget_request: int | None = None  # who asked to forget it, while that is being stored
    waiters: list[int] = field(default_factory=list)
    used_at: float = 0.0  # when it was last asked for, or this master began to lead


class Namespaces:
    def __init__(
        self, now: float, cluster: ClusterRecord, count_max: int, barriers: Barriers, unused_s: float = 0.0
    ) -> None:
        """`unused_s`: one that holds nothing and was not asked for so long is forgotten; 0: never."""
        self._began_at = now
        self._unused_s = unused_s
        self._expire_at = now + unused_s
        self._barriers = barriers
        self.cluster = cluster
        self.count_max = count_max
        self._by_identity: dict[bytes, NamespaceState] = {}
        self._current: dict[bytes, NamespaceState] = {}
        self._past: OrderedDict[bytes, NamespaceState] = OrderedDict()
        self.version = 0  # counts changes of the current ids

    def recover(self, records: Iterable[NamespaceRecord]) -> None:
        for record in records:
            ns_id = namespace_id(record.identity, record.epoch)
            namespace = NamespaceState(
                record.identity, record.name, record.epoch, ns_id, used_at=self._began_at
            )
            self._by_identity[record.identity] = namespace
            self._current[ns_id] = namespace
            self.version += 1
            for epoch in range(max(0, record.epoch - PAST_EPOCHS_AFTER_RESTART), record.epoch):
                self._remember(namespace_id(record.identity, epoch), namespace)

    def used(self, now: float, ns: bytes) -> None:
        """Somebody asks for what it holds, or is about to put something."""
        if (namespace := self._current.get(ns)) is not None:
            namespace.used_at = now

    def is_current(self, ns: bytes) -> bool:
        return ns in self._current

    def identity_of(self, ns: bytes) -> bytes:
        """Empty: it is not current."""
        namespace = self._current.get(ns)
        return namespace.identity if namespace is not None else b""

    def current_ids(self) -> list[bytes]:
        return list(self._current)

    def cleared_ids(self, count: int) -> list[bytes]:
        """The newest `count` ids of epochs that were ended."""
        return list(itertools.islice(reversed(self._past), count))

    def successor(self, ns: bytes) -> NamespaceState | None:
        """The namespace that `ns` was an id of; None when it is current, or never was one."""
        return self._past.get(ns)

    def records(self) -> list[NamespaceRecord]:
        """The current ones, as they are stored."""
        return [NamespaceRecord(each.identity, each.name, each.epoch) for each in self._current.values()]

    def __iter__(self) -> Iterator[NamespaceState]:
        return iter(self._current.values())

    def __len__(self) -> int:
        return len(self._current)

    @property
    def full(self) -> bool:
        """Whether one more would be refused."""
        return len(self._by_identity) >= self.count_max

    # ---- events --------------------------------------------------------------------------------------------

    def open(self, now: float, event: NamespaceOpened) -> list[Effect]:
        namespace = self._by_identity.get(event.identity)
        if namespace is not None:
            namespace.used_at = now
        if namespace is not None and namespace.forget_request is not None:
            return [_being_forgotten(event.request)]
        if namespace is not None and namespace.stored:
            return [NamespaceReady(event.request, namespace.id, namespace.epoch)]
        if namespace is not None:
            return self._wait(namespace, event.request)
        if self.full:
            text = (
                f"the cluster has its most of {self.count_max} namespaces: forget those that nobody uses any more "
                "(`kvstore admin forget`), or raise namespaces_max"
            )
            refused = Report("namespace_refused", {"name": event.name, "why": text}, throttle_key="")
            return [RequestRefused(event.request, Status.UNAVAILABLE, text), refused]
        epoch = self.cluster.epoch_floor
        namespace = NamespaceState(
            event.identity, event.name, epoch, namespace_id(event.identity, epoch), False, used_at=now
        )
        self._by_identity[event.identity] = namespace
        return self._store(namespace, epoch, event.request)

    def bump(self, event: NamespaceBumped) -> list[Effect]:
        if (past := self._past.get(event.ns)) is not None:
            return [NamespaceReady(event.request, past.id, past.epoch)]
        namespace = self._current.get(event.ns)
        if namespace is None:
            text = "no namespace has this id: open it by its identity"
            return [RequestRefused(event.request, Status.STALE_NAMESPACE, text)]
        if namespace.forget_request is not None:
            return [_being_forgotten(event.request)]
        if namespace.pending_epoch is not None:
            return self._wait(namespace, event.request)
        return self._store(namespace, namespace.epoch + 1, event.request)

    def forget(self, event: NamespaceForgotten) -> list[Effect]:
        """Its record goes, and whatever is opened from now on begins at a later epoch than it ever had: what it held never comes
        back."""
        namespace = self._current.get(event.ns)
        if namespace is None:
            text = "no namespace has this id: it has been cleared or forgotten meanwhile"
            return [RequestRefused(event.request, Status.MISS, text)]
        if namespace.pending_epoch is not None or namespace.forget_request is not None:
            text = "another change of this namespace is just being stored: try again"
            return [RequestRefused(event.request, Status.UNAVAILABLE, text)]
        return self._forget(namespace, event.request)

    def expire(self, now: float, is_empty: Callable[[bytes], bool]) -> list[Effect]:
        """Forgets some of those that hold nothing and that nobody has asked for; whoever does later opens it anew."""
        if self._unused_s <= 0 or now < self._expire_at:
            return []
        unused = [
            namespace
            for namespace in self._current.values()
            if now - namespace.used_at >= self._unused_s
            and namespace.pending_epoch is None
            and namespace.forget_request is None
            and is_empty(namespace.id)
        ]
        self._expire_at = now + min(self._unused_s / 4, EXPIRY_LOOK_S)
        effects: list[Effect] = []
        for namespace in unused[:EXPIRED_MAX]:
            fields = {"ns": namespace.id, "name": namespace.name, "unused_s": round(now - namespace.used_at)}
            effects.append(Report("namespace_expired", fields, logging.INFO))
            effects += self._forget(namespace, NOBODY)
        return effects

    def _forget(self, namespace: NamespaceState, request: int) -> list[Effect]:
        namespace.forget_request = request
        floor = max(self.cluster.epoch_floor, namespace.epoch + 1)
        # At once, so that a later forgetting does not store a lower one.
        self.cluster = replace(self.cluster, epoch_floor=floor)
        ops = (
            Delete(layout.namespace_key(identity_hash(namespace.identity))),
            Put(layout.CLUSTER_KEY, self.cluster.encode()),
        )
        return [Commit(ops, NamespaceRemoved(namespace.identity))]

    def removed(self, change: NamespaceRemoved) -> list[Effect]:
        namespace = self._by_identity.pop(change.identity)
        assert namespace.forget_request is not None
        del self._current[namespace.id]
        self.version += 1
        for past in [ns for ns, whose in self._past.items() if whose is namespace]:
            del self._past[past]
        fields = {"ns": namespace.id, "epoch": namespace.epoch, "name": namespace.name}
        return [
            RetireNamespaces((namespace.id,), self._barriers.cleared(namespace.id)),
            NamespaceGone(namespace.forget_request),
            Report("namespace_forgotten", fields, logging.INFO),
        ]

    def remove_failed(self, change: NamespaceRemoved, error: str) -> list[Effect]:
        namespace = self._by_identity[change.identity]
        request, namespace.forget_request = namespace.forget_request, None
        assert request is not None
        text = f"the namespace could not be removed from the store: {error}"
        return [RequestRefused(request, Status.UNAVAILABLE, text)]

    def stored(self, change: NamespaceStored) -> list[Effect]:
        namespace = self._by_identity[change.identity]
        assert namespace.pending_epoch == change.epoch
        namespace.pending_epoch = None
        effects: list[Effect] = []
        if namespace.stored:
            old = namespace.id
            del self._current[old]
            self._remember(old, namespace)
            effects.append(RetireNamespaces((old,), self._barriers.cleared(old)))
        namespace.stored = True
        namespace.epoch = change.epoch
        namespace.id = namespace_id(namespace.identity, change.epoch)
        self._current[namespace.id] = namespace
        self.version += 1
        waiters, namespace.waiters = namespace.waiters, []
        effects += [NamespaceReady(request, namespace.id, namespace.epoch) for request in waiters]
        fields = {"ns": namespace.id, "epoch": namespace.epoch, "name": namespace.name}
        return [*effects, Report("namespace_current", fields, logging.INFO)]

    def store_failed(self, change: NamespaceStored, error: str) -> list[Effect]:
        namespace = self._by_identity[change.identity]
        namespace.pending_epoch = None
        waiters, namespace.waiters = namespace.waiters, []
        if not namespace.stored:
            del self._by_identity[change.identity]
        text = f"the namespace could not be stored: {error}"
        return [RequestRefused(request, Status.UNAVAILABLE, text) for request in waiters]

    def commit_stalled(self, error: str) -> list[Effect]:
        """Answers those who wait; what they asked for is stored all the same once the store can."""
        effects: list[Effect] = []
        text = f"the metadata store fails, and it is tried again: {error}"
        for namespace in self._by_identity.values():
            if namespace.forget_request is not None:
                effects.append(RequestRefused(namespace.forget_request, Status.UNAVAILABLE, text))
            if namespace.waiters:
                waiters, namespace.waiters = namespace.waiters, []
                effects += [RequestRefused(request, Status.UNAVAILABLE, text) for request in waiters]
        return effects

    # ---- common --------------------------------------------------------------------------------------------

    def _store(self, namespace: NamespaceState, epoch: int, request: int) -> list[Effect]:
        namespace.pending_epoch = epoch
        namespace.waiters.append(request)
        record = NamespaceRecord(namespace.identity, namespace.name, epoch)
        put = Put(layout.namespace_key(identity_hash(namespace.identity)), record.encode())
        return [Commit((put,), NamespaceStored(namespace.identity, epoch))]

    @staticmethod
    def _wait(namespace: NamespaceState, request: int) -> list[Effect]:
        if len(namespace.waiters) >= WAITERS_MAX:
            text = f"{WAITERS_MAX} requests already wait for this namespace: try again"
            return [RequestRefused(request, Status.UNAVAILABLE, text)]
        namespace.waiters.append(request)
        return []

    def _remember(self, ns: bytes, namespace: NamespaceState) -> None:
        self._past[ns] = namespace
        if len(self._past) > PAST_IDS_MAX:
            self._past.popitem(last=False)


def _being_forgotten(request: int) -> RequestRefused:
    return RequestRefused(request, Status.UNAVAILABLE, "this namespace is just being forgotten: try again")
