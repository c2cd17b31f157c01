"""Which file a pool is, and what a segment knows of the one that it has left."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.common.capacity import CapacityError, capacity_of
from kvstore.common.config.memory import check_pool_path, parse_nodes
from kvstore.segment import pool_place
from kvstore.segment.errors import SegmentStartError
from kvstore.segment.pool_place import (
    KeptPool,
    bytes_at,
    capacity_at,
    kept_pool,
    moved_from,
    note_pool,
    pools_left_behind,
    why_lost,
)

ID = bytes(range(16))


def test_auto_is_a_file_of_the_segment_in_shared_memory_and_may_fall_back() -> None:
    place = pool_place.pool_place("auto", ID, "thp")
    assert place.path == Path(f"/dev/shm/kvstore-{ID.hex()}") and not place.required
    place = pool_place.pool_place("auto", ID, "1GiB")
    assert place.path == Path(f"/dev/hugepages/kvstore-{ID.hex()}") and not place.required


def test_a_path_is_that_or_nothing_and_off_is_no_file() -> None:
    assert pool_place.pool_place("/run/pages", ID, "2MiB") == pool_place.PoolPlace(Path("/run/pages"), True)
    assert pool_place.pool_place("off", ID, "thp") == pool_place.PoolPlace(None, True)


@pytest.mark.parametrize("text", ["pages", "", "./x", "on"])
def test_a_pool_path_that_depends_on_where_one_stands_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="absolute path"):
        check_pool_path(text)


def test_numa_nodes_are_numbers_separated_by_commas() -> None:
    assert parse_nodes("") == []
    assert parse_nodes("0,3") == [0, 3]
    for text in ("a", "0,", "-1", "1024", "0-1"):
        with pytest.raises(ValueError, match="NUMA nodes are numbers"):
            parse_nodes(text)


def test_the_size_of_a_pool_that_was_left_is_that_of_auto(tmp_path: Path) -> None:
    pool = tmp_path / "pages"
    pool.write_bytes(bytes(8192))
    note_pool(tmp_path, KeptPool(pool, 123 << 20))
    assert kept_pool(tmp_path) == KeptPool(pool, 123 << 20)
    assert capacity_at("auto", tmp_path, pool) == 123 << 20
    # Of another path it says nothing, nor does it rule what is asked for.
    assert capacity_at("5MiB", tmp_path, pool) == 5 << 20
    assert capacity_at("auto", tmp_path, tmp_path / "other") != 123 << 20
    pool.unlink()
    assert kept_pool(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"path": 3}', '{"path": "/x", "capacity_bytes": "much"}', "7"]
)
def test_a_note_that_says_nothing_is_no_note(tmp_path: Path, text: str) -> None:
    (tmp_path / "pool").write_text(text)
    assert kept_pool(tmp_path) is None


def test_a_note_that_cannot_be_written_is_told_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(SegmentStartError, match="--data-dir"):
        note_pool(tmp_path / "missing", KeptPool(Path("/x"), 1))


def test_what_a_pool_has_already_is_not_asked_of_the_machine_again(tmp_path: Path) -> None:
    def memory() -> tuple[int, str]:
        return 10 << 20, "a test"

    with pytest.raises(CapacityError):
        capacity_of("16MiB", memory)
    assert capacity_of("16MiB", memory, had_bytes=16 << 20) == 16 << 20
    assert bytes_at(None) == bytes_at(tmp_path / "missing") == 0


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    directory = Path("/dev/shm") / f"kvstore-test-{os.getpid()}"
    directory.mkdir()
    yield directory
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()


def test_files_of_segments_that_are_gone_are_found_and_those_of_others_let_alone(shared: Path) -> None:
    ours, stale, taken = (shared / f"kvstore-{digit * 32}" for digit in "012")
    for file in (ours, stale, taken, shared / "kvstore-else", shared / "other"):
        file.write_bytes(bytes(4096))
    with open(taken) as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert pools_left_behind(ours) == {stale: 4096}


def test_the_pool_that_a_segment_had_elsewhere_is_found_unless_a_process_has_it(
    tmp_path: Path, shared: Path
) -> None:
    pool = shared / "pages"
    assert moved_from(tmp_path, None) == {}, "there never was one"
    pool.write_bytes(bytes(8192))
    note_pool(tmp_path, KeptPool(pool, 1 << 20, pool_place.boot_id()))
    assert moved_from(tmp_path, pool) == {}
    assert moved_from(tmp_path, None) == moved_from(tmp_path, shared / "other") == {pool: 8192}
    with open(pool) as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert moved_from(tmp_path, None) == {}
    pool.unlink()
    assert moved_from(tmp_path, None) == {}


def test_a_pool_that_is_gone_is_said_to_be_and_why(tmp_path: Path) -> None:
    pool = tmp_path / "pages"
    assert why_lost(tmp_path, pool) == "", "there never was one"
    pool.write_bytes(bytes(8192))
    note_pool(tmp_path, KeptPool(pool, 1 << 20, pool_place.boot_id()))
    assert why_lost(tmp_path, pool) == ""
    pool.unlink()
    assert "has been removed" in why_lost(tmp_path, pool)
    assert why_lost(tmp_path, tmp_path / "elsewhere") == why_lost(tmp_path, None) == ""
    note_pool(tmp_path, KeptPool(pool, 1 << 20, "of another boot"))
    assert "the machine has been restarted" in why_lost(tmp_path, pool)
