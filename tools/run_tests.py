"""Runs make targets one after another as the steps of the whole test run and adds up their results.

usage: run_tests.py --results DIR TARGET...

Says what is running and how long it took. A step that leaves DIR/TARGET.xml (JUnit) counts its test cases, any other counts
as one. Every step runs whatever became of the ones before. The last line is `total: N passed, N failed, N skipped`, which
also goes to DIR/summary.txt; the exit status is 1 when anything failed or nothing ran.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class StepResult:
    """What one step came to."""

    name: str
    seconds: float
    passed: int
    failed: int
    skipped: int


def junit_counts(report: Path) -> tuple[int, int, int]:
    """(passed, failed, skipped) test cases of a JUnit file, pytest's or ctest's."""
    passed = failed = skipped = 0
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def run_step(name: str, results: Path) -> StepResult:
    """Runs `make NAME` with its output passed through."""
    report = results / f"{name}.xml"
    report.unlink(missing_ok=True)
    print(f"\n==> {name}", flush=True)
    started = time.monotonic()
    returncode = subprocess.run(["make", "--no-print-directory", name], check=False).returncode
    seconds = time.monotonic() - started
    passed, failed, skipped = junit_counts(report) if report.is_file() else (int(returncode == 0), 0, 0)
    if returncode != 0 and failed == 0:
        failed = 1  # It broke outside of its tests: in the build, the set-up or the runner.
    print(f"<== {name}: {passed} passed, {failed} failed, {skipped} skipped in {seconds:.0f} s", flush=True)
    return StepResult(name, seconds, passed, failed, skipped)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, required=True, help="directory of the JUnit files")
    parser.add_argument("targets", nargs="+")
    arguments = parser.parse_args()
    arguments.results.mkdir(parents=True, exist_ok=True)

    summary_file = arguments.results / "summary.txt"
    summary_file.unlink(missing_ok=True)

    steps = [run_step(target, arguments.results) for target in arguments.targets]

    print("\nstep                      passed  failed  skipped  seconds")
    for step in steps:
        counts = f"{step.passed:>6}  {step.failed:>6}  {step.skipped:>7}  {step.seconds:>7.0f}"
        print(f"{step.name:<24}  {counts}{'   FAILED' if step.failed else ''}")
    passed, failed, skipped = (sum(getattr(s, key) for s in steps) for key in ("passed", "failed", "skipped"))
    summary = f"total: {passed} passed, {failed} failed, {skipped} skipped"
    summary_file.write_text(summary + "\n")
    print(summary, flush=True)
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
