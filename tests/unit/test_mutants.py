"""The list of small wrong changes (tools/mutants/) stays in step with the code."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tools"))

import mutants  # noqa: E402

LISTED = mutants.read_lists(sorted(mutants.LISTS.glob("*.toml")))
ROOMS = ("kvstore/master/", "kvstore/segment/", "client/", "hicache_adapter/", "native/")


def test_there_are_enough_of_them_over_all_rooms() -> None:
    assert len(LISTED) >= 100
    for room in ROOMS:
        assert any(mutant.file.startswith(room) for mutant in LISTED), room


def test_each_has_a_name_of_its_own() -> None:
    names = Counter((mutant.file, mutant.name) for mutant in LISTED)
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("mutant", LISTED, ids=lambda mutant: mutant.name)
def test_each_changes_one_place_of_the_code_as_it_is(mutant: mutants.Mutant) -> None:
    text = (REPOSITORY / mutant.file).read_text()
    assert mutant.applied_to(text) != text


def test_the_tests_that_they_name_are_there() -> None:
    native = {path.stem.removeprefix("test_") for path in (REPOSITORY / "native/tests").rglob("test_*.cpp")}
    for mutant in LISTED:
        if mutant.is_native:
            assert set(mutant.tests.split()[1:]) <= native, mutant.name
        else:
            files = [word for word in mutant.tests.split() if word.endswith(".py")]
            assert files and all((REPOSITORY / file).is_file() for file in files), mutant.name


def test_a_text_that_is_not_there_once_is_an_error() -> None:
    mutant = mutants.Mutant("name", "file", "a", "b", "tests/x.py")
    for text in ("", "a a"):
        with pytest.raises(mutants.MutantError, match="not once"):
            mutant.applied_to(text)


def test_an_entry_with_a_word_too_many_or_too_few_is_an_error(tmp_path: Path) -> None:
    listed = tmp_path / "list.toml"
    listed.write_text('[[mutant]]\nname = "n"\nfile = "f"\nold = "a"\nnew = "b"\ntest = "t"\n')
    with pytest.raises(mutants.MutantError, match="'test', 'tests'"):
        mutants.read_lists([listed])


def verdict_on(tmp_path: Path, new: str) -> str:
    """What a tree of two files says of a change."""
    (tmp_path / "code_under_test.py").write_text("LIMIT = 3\n")
    (tmp_path / "test_code.py").write_text(
        "import code_under_test as c, time\n"
        "def test_limit():\n    assert c.LIMIT > 0\n    time.sleep(1000 * (c.LIMIT > 100))\n"
    )
    mutant = mutants.Mutant("name", "code_under_test.py", "LIMIT = 3", new, "test_code.py")
    return mutants.Tree(tmp_path).outcome(mutant).verdict


@pytest.mark.parametrize(
    ("new", "verdict"), [("LIMIT = 0", "killed"), ("LIMIT = 4", "survived"), ("LIMIT = 101", "timed out")]
)
def test_a_change_is_seen_when_its_tests_fail_or_hang_and_is_taken_back(
    new: str, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if verdict == "timed out":
        monkeypatch.setattr(mutants, "TEST_TIMEOUT_S", 3.0)
    assert verdict_on(tmp_path, new) == verdict
    assert (tmp_path / "code_under_test.py").read_text() == "LIMIT = 3\n"


def test_tests_that_fail_or_are_none_without_a_change_are_an_error(tmp_path: Path) -> None:
    tree = mutants.Tree(tmp_path)
    (tmp_path / "test_bad.py").write_text("def test_it():\n    assert False\n")
    (tmp_path / "test_none.py").write_text("")
    for name, why in (("test_bad.py", "fails"), ("test_none.py", "finds no test")):
        with pytest.raises(mutants.MutantError, match=why):
            tree.check(name)
