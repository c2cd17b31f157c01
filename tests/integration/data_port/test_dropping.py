"""Copies that the master has a segment drop."""

import pytest

from kvstore_client import _native

from .peer import MISS, NS, OK, UNAVAILABLE, WHOLE, Peer, hashes, values


def fingerprints(keys: list[bytes]) -> bytes:
    return _native.fingerprints(NS, 0, WHOLE, b"".join(keys))


def test_what_is_dropped_is_gone_and_told_and_its_space_is_free(
    peer: Peer, store: _native.SegmentStore
) -> None:
    keys, data = hashes(*map(str, range(40))), values(40, 5000)
    assert peer.put(keys, data).statuses == [OK] * 40
    used, seq = store.stats()["used_bytes"], store.last_seq
    absent = hashes("absent")
    assert list(store.drop_objects(NS, fingerprints(keys[:30] + absent))) == [OK] * 30 + [MISS]
    assert peer.get(keys) == [(MISS, b"")] * 30 + [(OK, value) for value in data[30:]]
    assert store.last_seq == seq + 30, "each is a REMOVE in the journal"
    assert store.stats()["object_count"] == 10
    assert store.stats()["dropped_objects"] == 30
    assert store.stats()["used_bytes"] <= used - sum(map(len, data[:30]))
    assert list(store.drop_objects(NS, fingerprints(keys[:30]))) == [MISS] * 30


def test_what_is_pinned_or_being_read_is_not_dropped(peer: Peer, store: _native.SegmentStore) -> None:
    keys, data = hashes("pinned", "held", "idle"), values(3, 5000)
    assert peer.put(keys, data).statuses == [OK] * 3
    assert peer.pin(keys[:1], pin_ms=60_000) == [OK]
    assert peer.locate(keys[1:2], hold_ms=60_000, request_id=7)[0].status == OK
    assert list(store.drop_objects(NS, fingerprints(keys))) == [UNAVAILABLE, UNAVAILABLE, OK]
    assert peer.get(keys[:2]) == [(OK, data[0]), (OK, data[1])]
    peer.unpin(7)
    assert peer.get(keys[1:2]) == [(OK, data[1])], "and with its reply the unpin has been heard"
    assert list(store.drop_objects(NS, fingerprints(keys[:2]))) == [UNAVAILABLE, OK]


def test_an_object_of_another_namespace_is_not_dropped(peer: Peer, store: _native.SegmentStore) -> None:
    keys, data = hashes("page"), values(1, 5000)
    assert peer.put(keys, data).statuses == [OK]
    assert list(store.drop_objects(b"another!", fingerprints(keys))) == [MISS]
    assert peer.get(keys) == [(OK, data[0])]
    for ns, fps in ((b"short", fingerprints(keys)), (NS, b"not whole")):
        with pytest.raises(ValueError, match="bytes"):
            store.drop_objects(ns, fps)
