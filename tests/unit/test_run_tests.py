"""The test runner adds up what its steps report, and never calls a failure a success."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "run_tests.py"
JUNIT = """<testsuites><testsuite><testcase name="a"/><testcase name="b"><failure/></testcase>
<testcase name="c"><skipped/></testcase></testsuite></testsuites>"""


def run(tmp_path: Path, makefile: str, *targets: str) -> tuple[int, str]:
    """(exit status, last line) of the runner in a directory with this Makefile."""
    (tmp_path / "Makefile").write_text(makefile)
    command = [sys.executable, str(TOOL), "--results", "results", *targets]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (tmp_path / "results" / "summary.txt").read_text() == done.stdout.splitlines()[-1] + "\n"
    return done.returncode, done.stdout.splitlines()[-1]


def test_steps_without_a_report_count_as_one_each(tmp_path: Path) -> None:
    assert run(tmp_path, "a b:\n\t@true\n", "a", "b") == (0, "total: 2 passed, 0 failed, 0 skipped")


def test_a_failing_step_fails_the_run_and_the_steps_after_it_still_run(tmp_path: Path) -> None:
    assert run(tmp_path, "a:\n\t@false\nb:\n\t@true\n", "a", "b") == (
        1,
        "total: 1 passed, 1 failed, 0 skipped",
    )


def test_cases_of_a_junit_report_are_added_up(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(JUNIT)
    makefile = "a:\n\t@cp junit.xml results/a.xml; false\n"
    assert run(tmp_path, makefile, "a") == (1, "total: 1 passed, 1 failed, 1 skipped")


def test_a_step_that_breaks_after_its_cases_passed_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text('<testsuite><testcase name="a"/></testsuite>')
    makefile = "a:\n\t@cp junit.xml results/a.xml; false\n"
    assert run(tmp_path, makefile, "a") == (1, "total: 1 passed, 1 failed, 0 skipped")


def test_a_report_of_an_earlier_run_is_not_counted_again(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a.xml").write_text('<testsuite><testcase name="a"/></testsuite>')
    assert run(tmp_path, "a:\n\t@false\n", "a") == (1, "total: 0 passed, 1 failed, 0 skipped")


def test_a_run_without_any_passed_case_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text("<testsuite></testsuite>")
    code, _ = run(tmp_path, "a:\n\t@cp junit.xml results/a.xml\n", "a")
    assert code == 1


def test_a_step_beside_the_others_starts_first_and_is_counted_in_its_turn(tmp_path: Path) -> None:
    # Each waits for what the other does: they only end when they run at the same time.
    wait = "@for _ in $$(seq 500); do [ -e {0} ] && exit 0; sleep 0.1; done; exit 1"
    makefile = f"slow:\n\t@touch slow.runs\n\t{wait.format('quick.runs')}\n"
    makefile += f"quick:\n\t@touch quick.runs\n\t{wait.format('slow.runs')}\nlast:\n\t@echo said; false\n"
    code, total = run(tmp_path, makefile, "--beside", "slow", "--beside", "last", "quick", "slow", "last")
    assert (code, total) == (1, "total: 2 passed, 1 failed, 0 skipped")
    assert (tmp_path / "results" / "last.log").read_text().startswith("said\n")


def test_the_table_shows_the_processor_time_of_what_a_step_starts(tmp_path: Path) -> None:
    busy = "import time\nwhile time.process_time() < 1.1: pass"
    (tmp_path / "busy.py").write_text(busy)
    (tmp_path / "Makefile").write_text(f"a:\n\t@{sys.executable} busy.py\nb:\n\t@sleep 0.1\n")
    command = [sys.executable, str(TOOL), "--results", "results", "a", "b"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line[:2] in ("a ", "b ")}
    assert float(rows["a"][5]) >= 1
    assert float(rows["b"][5]) == 0
