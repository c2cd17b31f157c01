"""A master meets what a later release has written (a roll-back): it does not start or go on, says why, and changes nothing."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvstore.master.metadata.registry import metadata_store
from kvstore.master.metadata.store import Put
from kvstore.master.state import layout
from kvstore.master.state.records import ENVELOPE_BYTES, Record, RecordKind
from support.earlier_release import RELEASES, EarlierRelease
from support.etcd_server import own_prefix, shared_etcd
from support.replicated_cluster import Master, ReplicatedCluster
from support.waiting import wait_until

PREFIXES = (b"m/", b"n/", b"s/", b"l/")
END_TIMEOUT_S = 30
VERSION_AT = 4


@pytest.fixture(params=["rocksdb", "etcd"])
def metadata(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store with a cluster, namespaces, segments, journals and a snapshot in it."""
    release = EarlierRelease(RELEASES[-1])
    if request.param == "rocksdb":
        release.put_rocksdb(tmp_path / "metadata")
        yield f"rocksdb://{tmp_path}/metadata"
    else:
        etcd, prefix = shared_etcd(), own_prefix(tmp_path)
        release.put_etcd(etcd.members[0], prefix)
        yield etcd.uri(prefix, ttl_s=2)


async def content(metadata: str) -> dict[bytes, bytes]:
    store = metadata_store(metadata)
    await store.open()
    try:
        return {key: value for prefix in PREFIXES async for page in store.scan(prefix) for key, value in page}
    finally:
        await store.close()


async def put(metadata: str, key: bytes, value: bytes) -> None:
    store = metadata_store(metadata)
    await store.open()
    try:
        await store.commit((Put(key, value),), await store.acquire())
    finally:
        await store.close()


def later_envelope(record: bytes) -> bytes:
    return record[:VERSION_AT] + struct.pack("<H", 2) + record[VERSION_AT + 2 :]


def later_fields(record: bytes) -> bytes:
    fields = json.loads(record[ENVELOPE_BYTES:])
    body = json.dumps({**fields, "format": 2}).encode()
    return Record(RecordKind.REGISTRY, 0, 0, body).encode()


def is_journal(key: bytes) -> bool:
    return key.startswith(layout.LOGS_PREFIX) and layout.parse_log_key(key).first_seq is not None


def is_snapshot(key: bytes) -> bool:
    return key.startswith(layout.LOGS_PREFIX) and layout.parse_log_key(key).first_seq is None


KINDS: dict[str, tuple[Callable[[bytes], bool], Callable[[bytes], bytes], str]] = {
    "journal": (is_journal, later_envelope, "a journal record"),
    "snapshot": (is_snapshot, later_envelope, "a snapshot record"),
    "cluster": (lambda key: key == layout.CLUSTER_KEY, later_fields, "the cluster's record"),
    "cluster-envelope": (lambda key: key == layout.CLUSTER_KEY, later_envelope, "a registry record"),
    "namespace": (lambda key: key.startswith(b"n/"), later_fields, "a namespace's record"),
    "segment": (lambda key: key.startswith(b"s/"), later_fields, "a segment's record"),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_master_refuses_to_start_on_what_a_later_release_has_written_and_leaves_it_as_it_is(
    kind: str, metadata: str, tmp_path: Path
) -> None:
    chosen, later, named = KINDS[kind]
    before = await content(metadata)
    key = max(key for key in before if chosen(key))
    await put(metadata, key, later(before[key]))
    before = await content(metadata)
    master = Master("master", tmp_path, metadata)
    master.start()
    try:
        assert master.process.process.wait(END_TIMEOUT_S) == 1
        (line,) = [each for each in master.process.log().splitlines() if "later release" in each]
        assert f"{named} in the metadata store has format 2, and this release reads format 1" in line
    finally:
        master.process.close()
    assert await content(metadata) == before


async def test_a_standby_ends_when_a_later_release_begins_to_write_and_leaves_it_as_it_is(
    tmp_path: Path,
) -> None:
    etcd, prefix = shared_etcd(), own_prefix(tmp_path)
    EarlierRelease(RELEASES[-1]).put_etcd(etcd.members[0], prefix)
    cluster = ReplicatedCluster(tmp_path, etcd.uri(prefix))
    try:
        cluster.start()
        standby = cluster.standby()
        begin = f"/{prefix}/".encode()
        stored = etcd.members[0].get_all()
        key = max(k for k in stored if k.startswith(begin + b"l/") and is_journal(k[len(begin) :]))
        etcd.members[0].put(key, later_envelope(stored[key]))
        assert standby.process.process.wait(END_TIMEOUT_S) == 1
        assert "a journal record in the metadata store has format 2" in standby.process.log()
        assert "core_task_ended" not in standby.process.log()
        assert etcd.members[0].get_all()[key] == later_envelope(stored[key])
        # Nor does it come back while that lies there; the leader goes on with what it has.
        standby.start()
        wait_until(lambda: standby.process.process.poll() is not None, "it refuses to start", END_TIMEOUT_S)
        assert cluster.leader() is not standby
        assert etcd.members[0].get_all()[key] == later_envelope(stored[key])
    finally:
        cluster.close()
