"""Mirrors of RocksDB's files in memory: whose process lives stays, the others go, however many start at once."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvstore.master.metadata.rocksdb_mirror import LOCKED_MARK, mirrored, remove_mirror, remove_mirrors

FILES = ("CURRENT", "000004.log", "MANIFEST-000005", "OPTIONS-000007")
MADE_IN_MIRROR = "rocksdict-config.json"

# Makes mirrors of a directory, after it has removed those that nobody has, and says which one it has in the end.
MAKER = """
import sys
from kvstore.master.metadata.rocksdb_mirror import mirrored, remove_mirror, remove_mirrors
path, base, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
for _ in range(rounds - 1):
    remove_mirrors(path, base)
    remove_mirror(mirrored(path, base))
remove_mirrors(path, base)
print(mirrored(path, base), flush=True)
sys.stdin.read()
"""


class Maker:
    """A process that has a mirror until it is killed."""

    def __init__(self, path: Path, base: Path, rounds: int = 1) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", MAKER, str(path), str(base), str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def mirror(self) -> Path:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it ended with {self._process.wait()}"
        return Path(line.rstrip())

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    return tmp_path / "base"


def database(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    path.mkdir()
    for file in (*FILES, "LOCK"):
        (path / file).write_text(file)
    return path


def test_a_mirror_has_links_to_all_files_but_those_that_rocksdict_writes(tmp_path: Path, base: Path) -> None:
    path = database(tmp_path, "one")
    mirror = Path(mirrored(str(path), str(base)))
    assert {entry.name for entry in mirror.iterdir()} == set(FILES)
    assert all((mirror / file).resolve() == path / file for file in FILES)
    remove_mirror(str(mirror))
    assert not list(base.iterdir())
    assert all((path / file).exists() for file in FILES)


def test_what_a_killed_process_has_left_goes_at_the_next_start_for_whichever_directory(
    tmp_path: Path, base: Path
) -> None:
    one, other = database(tmp_path, "one"), database(tmp_path, "other")
    killed, alive = Maker(one, base), Maker(other, base)
    left, used = killed.mirror(), alive.mirror()
    (left / MADE_IN_MIRROR).write_text("{}")
    try:
        remove_mirrors(str(tmp_path / "third"), str(base))
        assert left.exists() and used.exists()
        killed.kill()
        remove_mirrors(str(tmp_path / "third"), str(base))
        assert not left.exists()
        assert {entry.name for entry in used.iterdir()} == set(FILES)
    finally:
        killed.kill()
        alive.kill()
    remove_mirrors(str(other), str(base))
    assert not list(base.iterdir())
    assert all((one / file).exists() for file in FILES)


def test_one_without_a_lock_goes_with_its_directory_or_for_the_one_that_has_it(
    tmp_path: Path, base: Path
) -> None:
    """As releases before left them, which may run beside this one."""
    one, other = database(tmp_path, "one"), database(tmp_path, "other")
    left = {}
    for path in (one, other):
        maker = Maker(path, base)
        made = maker.mirror()
        maker.kill()
        left[path] = made.rename(base / made.name.replace(LOCKED_MARK, ""))
    remove_mirrors(str(one), str(base))
    assert not left[one].exists() and left[other].exists()
    (other / "CURRENT").unlink()
    remove_mirrors(str(one), str(base))
    assert not list(base.iterdir())


def test_nothing_else_in_that_place_is_touched(tmp_path: Path, base: Path) -> None:
    prefix = f"kvstore-rocksdb-{os.getuid()}-"
    (base / f"{prefix}file").write_text("x")
    (base / f"kvstore-rocksdb-{os.getuid() + 1}-{LOCKED_MARK}1").mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (base / f"{prefix}00000000-{LOCKED_MARK}link").symlink_to(target)
    before = sorted(base.iterdir())
    remove_mirrors(str(tmp_path / "one"), str(base))
    assert sorted(base.iterdir()) == before and target.is_dir()


@pytest.mark.parametrize("removed_before", ["open", "flock"])
def test_one_that_is_removed_before_it_is_held_is_made_again(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, removed_before: str
) -> None:
    module, real = (os, os.open) if removed_before == "open" else (fcntl, fcntl.flock)
    removed = 0

    def removing(first: Any, *others: int) -> Any:
        nonlocal removed
        for left in base.iterdir() if removed < 2 else ():
            left.rmdir()
            removed += 1
        return real(first, *others)

    path = database(tmp_path, "one")
    monkeypatch.setattr(module, removed_before, removing)
    mirror = Path(mirrored(str(path), str(base)))
    monkeypatch.undo()
    assert removed == 2 and list(base.iterdir()) == [mirror]
    assert {entry.name for entry in mirror.iterdir()} == set(FILES)


def test_those_who_start_at_once_take_nothing_from_each_other(tmp_path: Path, base: Path) -> None:
    makers = [Maker(database(tmp_path, f"directory{number}"), base, rounds=50) for number in range(6)]
    try:
        mirrors = [maker.mirror() for maker in makers]
        assert sorted(base.iterdir()) == sorted(mirrors)
        for mirror in mirrors:
            assert {entry.name for entry in mirror.iterdir()} == set(FILES)
            descriptor = os.open(mirror, os.O_RDONLY)
            with pytest.raises(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(descriptor)
    finally:
        for maker in makers:
            maker.kill()
