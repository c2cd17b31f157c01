"""Quotas: how many bytes a namespace, or all namespaces with one tag, may have in the cluster. Part of the state machine; does
no IO.

A quota is of an identity or of a tag, not of an epoch: clearing or forgetting a namespace leaves it as it is.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from kvstore.master.metadata.store import Delete, Put
from kvstore.master.state import layout
from kvstore.master.state.changes import QuotaStored
from kvstore.master.state.effects import Commit, Effect, QuotaReady, Report, RequestRefused
from kvstore.master.state.events import QuotaRequested
from kvstore.master.state.layout import QuotaKind, QuotaRecord
from kvstore.master.state.namespaces import Namespaces
from kvstore_client.protocol import Status

# Each is looked at once a second, and told to every segment.
QUOTAS_MAX = 256


@dataclass(frozen=True, slots=True)
class QuotaGroup:
    """A quota, and the current ids of the namespaces that it is of."""

    quota: QuotaRecord
    namespaces: tuple[bytes, ...]


class Quotas:
    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self._quotas: dict[tuple[QuotaKind, bytes], QuotaRecord] = {}
        self._storing: dict[int, tuple[QuotaKind, bytes]] = {}  # by request, those that wait for the store
        self._groups: tuple[QuotaGroup, ...] = ()
        self._groups_of = (-1, -1)  # versions of the namespaces and of the quotas that these groups are of
        self._version = 0

    def recover(self, records: Iterable[QuotaRecord]) -> None:
        for record in records:
            self._quotas[record.kind, record.subject] = record
        self._version += 1

    def __len__(self) -> int:
        return len(self._quotas)

    def records(self) -> list[QuotaRecord]:
        return list(self._quotas.values())

    def concern(self, ns: bytes) -> bool:
        """Whether any of them is of this current id."""
        if not self._quotas:
            return False
        identity = self._namespaces.identity_of(ns)
        keys = ((QuotaKind.NAMESPACE, identity), (QuotaKind.TAG, tag_of(identity)))
        return any(key in self._quotas for key in keys)

    def groups(self) -> tuple[QuotaGroup, ...]:
        """Of every quota, in no particular order."""
        versions = (self._namespaces.version, self._version)
        if versions != self._groups_of:
            self._groups_of = versions
            self._groups = self._grouped()
        return self._groups

    def request(self, event: QuotaRequested) -> list[Effect]:
        subject = (event.kind, event.subject)
        waiting = set(self._storing.values())
        new = {*self._quotas, *waiting}
        if event.limit_bytes is not None and subject not in new and len(new) >= QUOTAS_MAX:
            text = f"the cluster has its most of {QUOTAS_MAX} quotas: remove some, or give namespaces a common tag"
            return [RequestRefused(event.request, Status.UNAVAILABLE, text)]
        if event.limit_bytes is None and subject not in new:
            return [RequestRefused(event.request, Status.MISS, "there is no such quota")]
        self._storing[event.request] = subject
        key = layout.quota_key(event.kind, event.subject)
        if event.limit_bytes is None:
            op: Put | Delete = Delete(key)
        else:
            op = Put(key, QuotaRecord(event.kind, event.subject, event.limit_bytes).encode())
        return [Commit((op,), QuotaStored(event.request, event.kind, event.subject, event.limit_bytes))]

    def stored(self, change: QuotaStored) -> list[Effect]:
        self._storing.pop(change.request, None)
        if change.limit_bytes is None:
            self._quotas.pop((change.kind, change.subject), None)
        else:
            record = QuotaRecord(change.kind, change.subject, change.limit_bytes)
            self._quotas[change.kind, change.subject] = record
        self._version += 1
        of = change.subject.decode()
        fields = {"kind": change.kind.value, "of": of[:200], "limit_bytes": change.limit_bytes}
        return [QuotaReady(change.request), Report("quota_set", fields, logging.INFO)]

    def store_failed(self, change: QuotaStored, error: str) -> list[Effect]:
        self._storing.pop(change.request, None)
        text = f"the quota could not be stored: {error}"
        return [RequestRefused(change.request, Status.UNAVAILABLE, text)]

    def commit_stalled(self, error: str) -> list[Effect]:
        """Answers those who wait; what they asked for is stored all the same once the store can."""
        text = f"the metadata store fails, and it is tried again: {error}"
        return [RequestRefused(request, Status.UNAVAILABLE, text) for request in self._storing]

    def _grouped(self) -> tuple[QuotaGroup, ...]:
        by_identity: dict[bytes, bytes] = {}
        by_tag: dict[bytes, list[bytes]] = {}
        wants_tags = any(quota.kind is QuotaKind.TAG for quota in self._quotas.values())
        for namespace in self._namespaces:
            by_identity[namespace.identity] = namespace.id
            if wants_tags and (tag := tag_of(namespace.identity)):
                by_tag.setdefault(tag, []).append(namespace.id)
        groups = []
        for quota in self._quotas.values():
            if quota.kind is QuotaKind.TAG:
                members = by_tag.get(quota.subject, [])
            else:
                members = [by_identity[quota.subject]] if quota.subject in by_identity else []
            groups.append(QuotaGroup(quota, tuple(members)))
        return tuple(groups)


@functools.lru_cache(maxsize=65_536)
def tag_of(identity: bytes) -> bytes:
    """The tag of an identity (docs/identity.md); empty: it has none."""
    try:
        fields = json.loads(identity)
    except ValueError:
        return b""
    tag = fields.get("tag") if isinstance(fields, dict) else None
    return tag.encode() if isinstance(tag, str) else b""
