from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.segment.errors import SegmentStartError
from kvstore.segment.identity import SegmentIdentity, new_pool_id


def test_the_segment_id_survives_a_restart(tmp_path: Path) -> None:
    with SegmentIdentity(tmp_path / "data") as first:
        segment_id = first.segment_id
    with SegmentIdentity(tmp_path / "data") as second:
        assert second.segment_id == segment_id
    assert len(segment_id) == 16


def test_two_directories_are_two_segments(tmp_path: Path) -> None:
    with SegmentIdentity(tmp_path / "a") as a, SegmentIdentity(tmp_path / "b") as b:
        assert a.segment_id != b.segment_id


def test_a_second_process_is_kept_out_and_told_who_holds_the_directory(tmp_path: Path) -> None:
    with SegmentIdentity(tmp_path):
        code = (
            "import sys, pathlib\n"
            "from kvstore.segment.identity import SegmentIdentity\n"
            "try:\n    SegmentIdentity(pathlib.Path(sys.argv[1]))\n"
            "except Exception as error:\n    print(error)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    assert f"locked by another segment (pid {os.getpid()})" in done.stdout
    assert "--data-dir" in done.stdout


def test_the_lock_ends_with_its_holder(tmp_path: Path) -> None:
    SegmentIdentity(tmp_path).release()
    SegmentIdentity(tmp_path).release()


@pytest.mark.parametrize("content", ["", "not hex", "00" * 16, "ab" * 15])
def test_a_damaged_id_file_is_refused_and_not_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "segment_id").write_text(content)
    with pytest.raises(SegmentStartError, match="does not hold a segment id"):
        SegmentIdentity(tmp_path)
    assert (tmp_path / "segment_id").read_text() == content
    with pytest.raises(
        SegmentStartError, match="does not hold a segment id"
    ):  # and not "locked": that was released
        SegmentIdentity(tmp_path)


def test_an_unusable_directory_is_a_start_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(SegmentStartError, match=r"file.*--data-dir"):
        SegmentIdentity(file)


def test_pool_ids_are_never_zero_and_never_the_same() -> None:
    ids = {new_pool_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(any(pool_id) and len(pool_id) == 16 for pool_id in ids)


def test_an_identity_of_a_later_release_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    later = "format 2\n" + "ab" * 16 + "\nsomething else\n"
    (tmp_path / "segment_id").write_text(later)
    with pytest.raises(SegmentStartError, match="has format 2, and this release reads format 1"):
        SegmentIdentity(tmp_path)
    assert (tmp_path / "segment_id").read_text() == later
