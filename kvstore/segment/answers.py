"""Answers to what a master asks a segment, on behalf of operators or of its own."""

from __future__ import annotations

from typing import Any, Protocol

from kvstore.v1 import control_pb2 as pb
from kvstore_client.intent import Keep

HOTTEST_ENTRIES_MAX = 65_536


class KeepingStore(Protocol):
    """The part of SegmentStore that is asked."""

    def keep_objects(
        self, ns: bytes, fingerprints: bytes, intent: int, ttl_ms: int
    ) -> tuple[int, int, int]: ...

    def keep_namespace(self, ns: bytes, intent: int, ttl_ms: int) -> tuple[int, int, int]: ...

    def hottest(
        self, after: tuple[int, int, int] | None, entries_max: int
    ) -> tuple[bytes, tuple[int, int, int], bool]: ...

    def drop_objects(self, ns: bytes, fingerprints: bytes) -> bytes: ...

    def retention(self) -> tuple[int, list[tuple[bytes, int, int, int, int, bool]]]: ...


def answer_to(store: KeepingStore, message: Any) -> Any | None:
    """The message that answers `message`; None for one that can't be, which a master of another release may have sent."""
    if message.WhichOneof("body") == "tell_retention":
        return _retention(store, message.tell_retention.question)
    if message.WhichOneof("body") == "tell_hottest":
        return _hottest(store, message.tell_hottest)
    if message.WhichOneof("body") == "drop_objects":
        return _dropped(store, message.drop_objects)
    asked = message.keep_objects
    if asked.intent not in list(Keep):
        return None
    try:
        if asked.all:
            counts = store.keep_namespace(asked.namespace, asked.intent, asked.ttl_ms)
        else:
            counts = store.keep_objects(asked.namespace, asked.fingerprints, asked.intent, asked.ttl_ms)
    except ValueError:
        return None
    kept, refused, missing = counts
    return pb.SegmentMessage(
        kept=pb.Kept(question=asked.question, kept=kept, refused=refused, missing=missing)
    )


def _hottest(store: KeepingStore, asked: Any) -> Any:
    after = (asked.after.since, asked.after.rank, asked.after.slot) if asked.HasField("after") else None
    groups, walk, last = store.hottest(after, max(1, min(asked.entries_max, HOTTEST_ENTRIES_MAX)))
    since, rank, slot = walk
    return pb.SegmentMessage(
        hottest_told=pb.HottestTold(
            question=asked.question,
            groups=groups,
            walk=pb.RankWalk(since=since, rank=rank, slot=slot),
            last=last,
        )
    )


def _dropped(store: KeepingStore, order: Any) -> Any | None:
    try:
        statuses = store.drop_objects(order.namespace, order.fingerprints)
    except ValueError:
        return None
    return pb.SegmentMessage(dropped=pb.Dropped(question=order.question, statuses=statuses))


def _retention(store: KeepingStore, question: int) -> Any:
    namespace_bytes_max, accounts = store.retention()
    told = pb.RetentionTold(question=question, namespace_bytes_max=namespace_bytes_max)
    for ns, retained_bytes, retained_objects, demoted_objects, refused, heeded in accounts:
        told.namespaces.append(
            pb.NamespaceRetention(
                id=ns,
                retained_bytes=retained_bytes,
                retained_objects=retained_objects,
                demoted_objects=demoted_objects,
                retentions_refused=refused,
                demotions_heeded=heeded,
            )
        )
    return pb.SegmentMessage(retention_told=told)
