"""The segment map is encoded once an epoch, and tells how full segments are all the same."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest

from kvstore.master.ports import served_map
from kvstore.master.ports.served_map import REFRESH_S, ServedMap
from kvstore.master.roles import Roles
from kvstore_client.protocol import EncodedMap, MapRecord, MapReply, SegmentState


def record(index: int, used_bytes: int = 0, host: str = "10.0.0.1", unix_path: str = "") -> MapRecord:
    peer = bytes([index + 1]) * 16
    return MapRecord(index, SegmentState.LIVE, peer, peer, 1 << 40, used_bytes, host, 7450 + index, unix_path)


class CountingBackend:
    """The part of a backend that a map is made of."""

    def __init__(self, *records: MapRecord) -> None:
        self.records = {record.index: record for record in records}
        self.map_epoch = 1
        self.encoded = 0

    def segment_map(self) -> list[MapRecord]:
        self.encoded += 1
        return list(self.records.values())

    def used_bytes(self) -> dict[int, int]:
        return {record.index: record.used_bytes for record in self.records.values()}

    def use(self, index: int, used_bytes: int) -> None:
        self.records[index] = replace(self.records[index], used_bytes=used_bytes)


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(served_map, "time", clock)
    return clock


def serving(backend: CountingBackend) -> ServedMap:
    roles = Roles()
    roles.lead(backend)  # type: ignore[arg-type]
    return ServedMap(roles)


def test_an_encoded_map_is_the_reply_of_the_same_records_after_each_refresh() -> None:
    records = [record(3, 7, "long.host.example", "/run/x.sock"), record(0, 8), record(9, 9, "h")]
    encoded = EncodedMap(records)
    assert encoded.refresh({}) == MapReply(tuple(records)).encode()
    for used in ({0: 0}, {3: 2**40, 9: 1, 77: 5}, {0: 2**64 - 1, 3: 1, 9: 0}):
        records = [replace(each, used_bytes=used.get(each.index, each.used_bytes)) for each in records]
        assert encoded.refresh(used) == MapReply(tuple(records)).encode()


def test_the_map_is_encoded_once_an_epoch_and_tells_how_full_segments_are_after_a_while(clock: Clock) -> None:
    backend = CountingBackend(record(0), record(1))
    served = serving(backend)
    first = served.fields()
    backend.use(1, 555)
    clock.now += REFRESH_S / 2
    assert served.fields() is first
    for used_bytes in (555, 777, 0):
        backend.use(1, used_bytes)
        clock.now += REFRESH_S
        assert [r.used_bytes for r in MapReply.decode(served.fields()).segments] == [0, used_bytes]
    assert backend.encoded == 1


def test_a_new_epoch_or_another_backend_is_told_at_once(clock: Clock) -> None:
    backend = CountingBackend(record(0))
    served = serving(backend)
    served.fields()
    backend.records[5] = record(5, 50)
    backend.map_epoch += 1
    assert [r.index for r in MapReply.decode(served.fields()).segments] == [0, 5]
    other = CountingBackend(record(8))
    other.map_epoch = backend.map_epoch
    served._roles.lead(other)  # type: ignore[arg-type]
    assert [r.index for r in MapReply.decode(served.fields()).segments] == [8]


def test_a_backend_that_serves_no_more_is_let_go_though_nobody_asks_for_a_map(clock: Clock) -> None:
    old = CountingBackend(record(0))
    roles = Roles()
    roles.lead(old)  # type: ignore[arg-type]
    served = ServedMap(roles)
    served.fields()
    gone = weakref.ref(old)
    roles.lead(CountingBackend(record(0)))  # type: ignore[arg-type]
    del old
    gc.collect()
    assert gone() is None
