"""The directory of the embedded store: taken over from an earlier release, refused when it is of a later one, bounded, and never
refused without the remedy."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.common.errors import StoreError
from kvstore.master.metadata import carry_over, durable_log, store_directory
from kvstore.master.metadata.carry_over import CarryOver
from kvstore.master.metadata.rocksdb import RocksdbStore
from kvstore.master.metadata.store import DeleteRange, Put
from support.master_peers import until
from support.store_worker import rocksdb_pid

# As the releases before the commit log wrote it, and left it at a crash: the last records lie in RocksDB's own log.
EARLIER_RELEASE = """
import os, struct, sys
import rocksdict
options = rocksdict.Options(raw_mode=True)
options.create_if_missing(True)
options.set_recycle_log_file_num(4)
options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.skip_any_corrupted_record())
options.set_compression_type(rocksdict.DBCompressionType.none())
synced = rocksdict.WriteOptions()
synced.sync = True
db = rocksdict.Rdict(sys.argv[1], options)
db.put(b"\\x00term", struct.pack("<Q", 7), write_opt=synced)
for i in range(100):
    batch = rocksdict.WriteBatch(raw_mode=True)
    batch.put(b"k%03d" % i, b"value %d" % i)
    if i == 50:
        db.flush()
    db.write(batch, synced)
os._exit(0)
"""


def leave_an_earlier_release(path: Path) -> None:
    subprocess.run([sys.executable, "-c", EARLIER_RELEASE, str(path)], check=True, timeout=60)


def run_an_earlier_release(path: Path) -> subprocess.Popen[bytes]:
    """Until it is killed."""
    script = EARLIER_RELEASE.replace("os._exit(0)", "print(1, flush=True); input()")
    command = [sys.executable, "-c", script, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


async def content(path: Path, prefix: bytes = b"k") -> dict[bytes, bytes]:
    store = RocksdbStore(path)
    await store.open()
    try:
        return {key: value async for page in store.scan(prefix) for key, value in page}
    finally:
        await store.close()


def carried_over(store: RocksdbStore) -> CarryOver:
    assert store._rocksdb is not None
    return store._rocksdb


def kill_rocksdb() -> None:
    """The next process opens the directory anew."""
    pid = rocksdb_pid(os.getpid())
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


async def refusal(path: Path) -> str:
    store = RocksdbStore(path)
    with pytest.raises(StoreError) as refused:
        await store.open()
    await store.close()
    return str(refused.value)


async def test_a_directory_of_rocksdb_alone_is_taken_over_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "db"
    leave_an_earlier_release(path)
    expected = {b"k%03d" % i: b"value %d" % i for i in range(100)}
    assert await content(path) == expected
    store = RocksdbStore(path)
    await store.open()
    fence = await store.acquire()
    assert fence.term == 8
    await store.commit((Put(b"k100", b"new"), DeleteRange(b"k000", b"k090")), fence)
    await store.close()
    assert await content(path) == {b"k%03d" % i: expected[b"k%03d" % i] for i in range(90, 100)} | {
        b"k100": b"new"
    }


async def test_after_a_clean_end_rocksdb_alone_has_everything(tmp_path: Path) -> None:
    path = tmp_path / "db"
    store = RocksdbStore(path)
    await store.open()
    fence = await store.acquire()
    await store.commit([Put(b"k%d" % i, b"v") for i in range(9)], fence)
    await store.close()
    shutil.rmtree(path / "commits")
    assert len(await content(path)) == 9


@pytest.mark.parametrize("version", [store_directory.FORMAT_VERSION + 1, 999])
async def test_a_later_format_is_refused_and_untouched(tmp_path: Path, version: int) -> None:
    path = tmp_path / "db"
    await content(path)
    (path / "FORMAT").write_text(f"kvstore metadata {version}\n")
    before = tree(path)
    why = await refusal(path)
    assert f"format {version}" in why and str(store_directory.FORMAT_VERSION) in why
    assert tree(path) == before


async def test_a_format_that_says_nothing_is_refused_and_an_empty_one_is_a_crash_of_its_writer(
    tmp_path: Path,
) -> None:
    path = tmp_path / "db"
    await content(path)
    (path / "FORMAT").write_text("what\n")
    before = tree(path)
    assert "says no format version" in await refusal(path)
    assert tree(path) == before
    (path / "FORMAT").write_text("")
    await content(path)
    assert (path / "FORMAT").read_text() == store_directory.format_text()


def empty(pattern: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        files = list(path.glob(pattern))
        assert files
        for file in files:
            file.write_bytes(b"")

    return damage


def remove(pattern: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        files = list(path.glob(pattern))
        assert files
        for file in files:
            file.unlink()

    return damage


@pytest.mark.parametrize(
    "damage",
    [empty("CURRENT"), empty("MANIFEST-*"), empty("*.sst"), remove("*.sst"), remove("MANIFEST-*")],
    ids=["empty CURRENT", "empty MANIFEST", "empty table", "no table", "no MANIFEST"],
)
async def test_damaged_files_are_called_that_and_removing_them_is_said_to_cost_warm_pages(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / "db"
    store = RocksdbStore(path)
    await store.open()
    fence = await store.acquire()
    await store.commit((Put(b"k", bytes(100)),), fence)
    await store.close()
    damage(path)
    why = await refusal(path)
    assert "damaged" in why and "loses warm pages and nothing else" in why
    assert "another master" not in why.lower() and "other process" not in why.lower()


async def test_a_file_in_its_place_or_above_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "db"):
        why = await refusal(path)
        assert "file is where" in why and str(path) in why


@pytest.mark.parametrize(
    ("why", "remedy"),
    [
        ("IO error: Permission denied: /x/LOCK", "right to read and write"),
        ("[Errno 30] Read-only file system: '/x'", "mounted read-only"),
        ("IO error: No space left on device: /x", "Free space"),
        ("IO error: Disk quota exceeded", "Free space"),
        ("IO error: While lock file: /x/LOCK: Resource temporarily unavailable", "Another process"),
        ("[Errno 5] Input/output error", "disk fails"),
        ("Corruption: bad block in /x/000012.sst", "damaged"),
    ],
)
def test_the_remedy_fits_the_cause(why: str, remedy: str) -> None:
    text = str(store_directory.unusable(Path("/x"), why))
    assert remedy in text and "/x" in text


async def test_a_directory_that_an_earlier_release_runs_on_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "db"
    process = run_an_earlier_release(path)
    why = await refusal(path)
    process.kill()
    process.wait(10)
    assert "Another process has it open" in why and "warm pages" not in why


async def test_the_second_master_is_told_which_process_has_the_directory(tmp_path: Path) -> None:
    store = RocksdbStore(tmp_path / "db")
    await store.open()
    assert f"process {os.getpid()} on host" in await refusal(tmp_path / "db")
    await store.close()


async def test_under_churn_the_directory_stays_below_four_times_what_is_alive_and_32_mib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight segments that log entries, most of which die, and are compacted by a snapshot and a deleted range, as logs are."""
    monkeypatch.setattr(
        carry_over, "CHECKPOINT_BYTES", 1 << 20
    )  # more checkpoints, tables and merges in the same time
    monkeypatch.setattr(carry_over, "CARRY_DELAY_S", 0.05)
    rng = random.Random(11)
    store = RocksdbStore(tmp_path / "db")
    await store.open()
    fence = await store.acquire()
    live = dict.fromkeys(range(8), 0)
    written = largest = 0
    record = rng.randbytes(40_000)
    for turn in range(160):
        segment = turn % 8
        keys = [b"log/%d/%010d" % (segment, turn * 100 + sequence) for sequence in range(20)]
        await store.commit_together([[Put(key, record)] for key in keys], fence)
        written += len(keys) * len(record)
        live[segment] += len(keys) * len(record)
        snapshot = Put(b"snapshot/%d" % segment, record)
        await store.commit((snapshot, DeleteRange(b"log/%d/" % segment, b"log/%d0" % segment)), fence)
        live[segment] = len(record)
        occupied = await store.size_bytes()
        largest = max(largest, occupied)
        assert occupied <= 4 * sum(live.values()) + (32 << 20), f"after {written >> 20} MiB"
    await store.close()
    assert written > 3 * largest, "enough was written to need the bound"
    sizes = {file.name: file.stat().st_size for file in (tmp_path / "db").iterdir() if file.is_file()}
    assert len(sizes) < 40, sizes
    print(f"{written >> 20} MiB written, {largest >> 20} MiB at most")


async def test_a_full_log_holds_commits_up_until_rocksdb_is_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_log, "FILE_BYTES", 256 << 10)
    monkeypatch.setattr(carry_over, "CHECKPOINT_BYTES", 192 << 10)
    store = RocksdbStore(tmp_path / "db")
    await store.open()
    fence = await store.acquire()
    for i in range(200):  # many times what the log holds
        await store.commit((Put(b"k%04d" % i, bytes(50_000)),), fence)
    assert len([key async for page in store.scan(b"k") for key, _ in page]) == 200
    await asyncio.wait_for(store.close(), 5)


async def test_a_directory_that_is_moved_away_takes_no_commits_and_gets_no_other_files_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carry_over, "CARRY_DELAY_S", 0.0)
    monkeypatch.setattr(carry_over, "CHECKPOINT_PERIOD_S", 0.0)
    path, away = tmp_path / "store", tmp_path / "away"
    store = RocksdbStore(path)
    await store.open()
    fence = await store.acquire()
    await store.commit([Put(b"k1", b"1")], fence)
    path.rename(away)
    for _ in range(3):
        with pytest.raises(StoreError, match="removed or replaced while it was in use"):
            await store.commit([Put(b"k2", b"2")], fence)
    with pytest.raises(StoreError):
        await store.size_bytes()
    await until(lambda: "store/CURRENT" in carried_over(store).trouble, "it was opened anew")
    assert "move it back" in store_directory.remedy(carried_over(store).trouble)
    assert not path.exists()
    away.rename(path)
    await store.commit([Put(b"k2", b"2")], fence)
    await until(lambda: not carried_over(store).trouble, "it goes on")
    await store.close()
    assert await content(path) == {b"k1": b"1", b"k2": b"2"}


async def test_a_database_that_was_replaced_meanwhile_is_not_carried_over_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carry_over, "CARRY_DELAY_S", 0.0)
    path, other = tmp_path / "store", tmp_path / "other"
    store = RocksdbStore(other)
    await store.open()
    await store.close()
    store = RocksdbStore(path)
    await store.open()
    fence = await store.acquire()
    await store.commit([Put(b"k1", b"1")], fence)
    await carried_over(store).checkpoint()
    path.rename(tmp_path / "away")
    other.rename(path)
    kill_rocksdb()
    await until(lambda: "was replaced" in carried_over(store).trouble, "the exchange is seen")
    await store.close()
    assert await content(path) == {}


def test_a_start_that_ends_for_want_of_space_does_not_say_that_it_goes_on_by_itself() -> None:
    why = os.strerror(errno.ENOSPC)
    assert "start it again" in str(store_directory.unusable(Path("/d"), why))
    assert "by itself" not in str(store_directory.unusable(Path("/d"), why))
    assert "by itself" in store_directory.remedy(why)


async def test_a_process_that_was_killed_is_no_reason_to_remove_the_directory(tmp_path: Path) -> None:
    store = RocksdbStore(tmp_path)
    await store.open()
    kill_rocksdb()
    await until(lambda: carried_over(store).trouble, "the end is seen")
    said = store_directory.remedy(carried_over(store).trouble)
    assert "started again by itself" in said and "remov" not in said
    await store.close()
