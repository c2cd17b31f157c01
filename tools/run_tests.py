"""Runs make targets one after another as the steps of the whole test run and adds up their results.

usage: run_tests.py --results DIR [--beside TARGET]... TARGET...

Says what is running and how long it took. A step that leaves DIR/TARGET.xml (JUnit) counts its test cases, any other counts
as one. Every step runs whatever became of the ones before. `--beside`: this one of the targets, which mostly waits for the
network, starts at once; its own turn is to be waited for, and its output comes then. The last line is
`total: N passed, N failed, N skipped`, which also goes to DIR/summary.txt; the exit status is 1 when anything failed or
nothing ran.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True)
class StepResult:
    """What one step came to."""

    name: str
    seconds: float  # that the run waited for it
    cpu_seconds: float  # of it and all that it started and waited for
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


class Step:
    """`make NAME`, started when made; its output goes to ours, or to DIR/NAME.log when others run beside it."""

    def __init__(self, name: str, results: Path, beside: bool = False) -> None:
        self._name = name
        self._report = results / f"{name}.xml"
        self._report.unlink(missing_ok=True)
        self._log = results / f"{name}.log" if beside else None
        command = ["make", "--no-print-directory", name]
        if not beside:
            print(f"\n==> {name}", flush=True)
        self._started = time.monotonic()
        output: IO[bytes] | None = self._log.open("wb") if self._log else None
        try:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT if output else None
            )
        finally:
            if output:
                output.close()

    def finish(self) -> StepResult:
        """Waits for its end and says what it came to."""
        started = self._started if self._log is None else time.monotonic()
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - started
        if self._log:
            print(f"\n==> {self._name}, begun beside the others")
            print(self._log.read_text(errors="replace"), end="")
        passed, failed, skipped = int(returncode == 0), 0, 0
        if self._report.is_file():
            passed, failed, skipped = junit_counts(self._report)
        if returncode != 0 and failed == 0:
            failed = 1  # It broke outside of its tests: in the build, the set-up or the runner.
        counts = f"{passed} passed, {failed} failed, {skipped} skipped"
        print(f"<== {self._name}: {counts} in {seconds:.0f} s", flush=True)
        return StepResult(self._name, seconds, usage.ru_utime + usage.ru_stime, passed, failed, skipped)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, required=True, help="directory of the JUnit files")
    parser.add_argument(
        "--beside", action="append", default=[], metavar="TARGET", help="start this one at once"
    )
    parser.add_argument("targets", nargs="+")
    arguments = parser.parse_args()
    if unknown := set(arguments.beside) - set(arguments.targets):
        parser.error(f"--beside names what is none of the targets: {' '.join(sorted(unknown))}")
    arguments.results.mkdir(parents=True, exist_ok=True)

    summary_file = arguments.results / "summary.txt"
    summary_file.unlink(missing_ok=True)

    beside = {target: Step(target, arguments.results, beside=True) for target in arguments.beside}
    steps = [(beside.get(target) or Step(target, arguments.results)).finish() for target in arguments.targets]

    print("\nstep                      passed  failed  skipped  seconds  CPU seconds")
    for step in steps:
        counts = f"{step.passed:>6}  {step.failed:>6}  {step.skipped:>7}"
        times = f"{step.seconds:>7.0f}  {step.cpu_seconds:>11.0f}"
        print(f"{step.name:<24}  {counts}  {times}{'   FAILED' if step.failed else ''}")
    times = f"{sum(s.seconds for s in steps):>7.0f}  {sum(s.cpu_seconds for s in steps):>11.0f}"
    print(f"{'all':<24}  {'':>24}  {times}")
    passed, failed, skipped = (sum(getattr(s, key) for s in steps) for key in ("passed", "failed", "skipped"))
    summary = f"total: {passed} passed, {failed} failed, {skipped} skipped"
    summary_file.write_text(summary + "\n")
    print(summary, flush=True)
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
