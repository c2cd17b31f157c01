"""Makes small wrong changes, one at a time, runs the narrowest tests, and says which changes no test sees.

usage: mutants.py [-k TEXT]... [--jobs N] [--at-least PERCENT] [--results FILE]

The changes are listed in tools/mutants/*.toml, in code that safety rests on: `file`, the text `old` in it, which is there
exactly once, `new` in its place, and `tests`: what to run, as arguments of pytest, or `ctest NAME...` for C++. One that
changes nothing that a test could see says why in `equivalent`; it is not run.

Each worker has a copy of the working tree and a network of its own; C++ is built in one of them, only what a test needs. Tests
that do not pass without any change are an error, as is an `old` that is no longer found. A change that is not seen is a test to
be written. `-k` takes those whose file, name or list contains TEXT. The exit status is 1 when fewer than PERCENT (95) were seen.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parent.parent
LISTS = REPOSITORY / "tools" / "mutants"
CTEST = "ctest"
# A change may make a test wait for what never comes.
TEST_TIMEOUT_S = 180.0
BUILD_TIMEOUT_S = 900.0
NO_TESTS = 5  # exit code of pytest

# The environment's editable install would be imported instead of the copy.
SITE_CUSTOMIZE = """import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
"""


class MutantError(Exception):
    """The list is wrong, or the tests are, without any change."""


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    tests: str
    equivalent: str = ""

    @property
    def is_native(self) -> bool:
        return self.tests.startswith(CTEST + " ")

    def applied_to(self, text: str) -> str:
        found = text.count(self.old)
        if found != 1:
            raise MutantError(f"{self.name}: its old text is {found} times in {self.file}, not once")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Outcome:
    mutant: Mutant
    verdict: str  # killed, timed out, survived
    seconds: float

    @property
    def seen(self) -> bool:
        return self.verdict != "survived"


def read_lists(paths: Iterable[Path]) -> list[Mutant]:
    """Raises MutantError."""
    mutants: list[Mutant] = []
    for path in paths:
        listed: dict[str, Any] = tomllib.loads(path.read_text())
        for entry in listed["mutant"]:
            unknown = entry.keys() - {"name", "file", "old", "new", "tests", "equivalent"}
            missing = {"name", "file", "old", "new", "tests"} - entry.keys()
            if unknown or missing:
                raise MutantError(f"{path.name}: {entry.get('name', '?')}: {sorted(unknown | missing)}")
            mutants.append(Mutant(**{**entry, "name": f"{path.stem}: {entry['name']}"}))
    return mutants


class Tree:
    """A directory that tests run in; changed and put back for each mutant."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._built = False

    @staticmethod
    def copy(directory: Path) -> Tree:
        """Of the working tree."""
        tree = Tree(directory)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
        ).stdout.decode()
        for name in filter(None, listed.split("\0")):
            source, target = REPOSITORY / name, directory / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        tree._link_generated()
        (directory / "site").mkdir()
        (directory / "site" / "sitecustomize.py").write_text(SITE_CUSTOMIZE)
        return tree

    def _link_generated(self) -> None:
        """What the build has made of protos and C++, beside the sources."""
        for packages, package in ((self.directory, "kvstore"), (self.directory / "client", "kvstore_client")):
            installed = site_packages() / package
            for made in installed.rglob("*"):
                target = packages / package / made.relative_to(installed)
                if made.is_file() and made.suffix in (".py", ".so") and not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.symlink_to(made)

    def outcome(self, mutant: Mutant) -> Outcome:
        started = time.monotonic()
        path = self.directory / mutant.file
        original = path.read_text()
        path.write_text(mutant.applied_to(original))
        try:
            code = self.run(mutant.tests)
        finally:
            path.write_text(original)
        verdict = "timed out" if code is None else "survived" if code == 0 else "killed"
        return Outcome(mutant, verdict, time.monotonic() - started)

    def check(self, tests: str) -> None:
        """Raises MutantError unless they pass as things are."""
        code = self.run(tests)
        if code != 0:
            why = "takes too long" if code is None else "finds no test" if code == NO_TESTS else "fails"
            raise MutantError(f"without any change {tests!r} {why}")

    def run(self, tests: str) -> int | None:
        """The exit code; None: it took too long."""
        if tests.startswith(CTEST + " "):
            return self._run_native(tests.split()[1:])
        options = ["-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
        return self._execute([sys.executable, "-m", "pytest", *options, *shlex.split(tests)], TEST_TIMEOUT_S)

    def _run_native(self, names: list[str]) -> int | None:
        build = self.directory / "build" / "native"
        if not self._built:
            configure = ["cmake", "-S", ".", "-B", str(build), "-G", "Ninja"]
            configure += ["-DKVSTORE_BUILD_PYTHON=OFF", "-DKVSTORE_BUILD_TESTS=ON"]
            if self._execute(configure, BUILD_TIMEOUT_S) != 0:
                raise MutantError("the native tests can't be configured: make native-test says why")
            self._built = True
        for target in (f"test_{name}" for name in names):  # most changes are seen by the first
            if self._execute(["cmake", "--build", str(build), "--target", target], BUILD_TIMEOUT_S) != 0:
                return 1  # the compiler sees it
            (executable,) = build.rglob(target)
            code = self._execute([str(executable)], TEST_TIMEOUT_S)
            if code != 0:
                return code
        return 0

    def _execute(self, command: list[str], timeout_s: float) -> int | None:
        process = subprocess.Popen(
            [sys.executable, str(REPOSITORY / "tools" / "own_network.py"), *command],
            cwd=self.directory,
            env={
                **os.environ,
                "PYTHONPATH": ":".join(str(self.directory / part) for part in ("site", ".", "client")),
                "PYTHONDONTWRITEBYTECODE": "1",  # two changes a second apart look the same to Python's cache
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            # Servers that a test has left behind, too.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def site_packages() -> Path:
    (found,) = (Path(sys.prefix) / "lib").glob("python3*/site-packages")
    return found


class Runner:
    """Runs mutants on a few trees at a time. C++ has one to itself: two builds at once would only be slower."""

    def __init__(self, scratch: Path, jobs: int) -> None:
        self._trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for number in range(jobs):
            self._trees.put(Tree.copy(scratch / f"tree{number}"))
        self._native_trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        self._native_trees.put(Tree.copy(scratch / "native"))
        self._pool = concurrent.futures.ThreadPoolExecutor(jobs)
        self._native_pool = concurrent.futures.ThreadPoolExecutor(1)

    def check_all(self, mutants: Sequence[Mutant]) -> None:
        """Raises MutantError: the tests do not pass without a change."""
        runs = dict.fromkeys((mutant.is_native, mutant.tests) for mutant in mutants)
        checks = [self._submit(native, lambda tree, of=tests: tree.check(of)) for native, tests in runs]
        faults = [str(check.exception()) for check in checks if check.exception() is not None]
        if faults:
            raise MutantError("\n".join(faults))

    def outcomes(self, mutants: Sequence[Mutant]) -> Iterable[Outcome]:
        tries = [self._submit(m.is_native, lambda tree, of=m: tree.outcome(of)) for m in mutants]
        for done in concurrent.futures.as_completed(tries):
            yield done.result()

    def _submit(self, native: bool, work: Any) -> concurrent.futures.Future[Any]:
        trees = self._native_trees if native else self._trees

        def on_tree() -> Any:
            tree = trees.get()
            try:
                return work(tree)
            finally:
                trees.put(tree)

        return (self._native_pool if native else self._pool).submit(on_tree)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-k", action="append", default=[], metavar="TEXT")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--at-least", type=float, default=95.0)
    parser.add_argument("--results", type=Path)
    asked = parser.parse_args()
    try:
        mutants = read_lists(sorted(LISTS.glob("*.toml")))
        if asked.k:
            mutants = [m for m in mutants if any(text in f"{m.file} {m.name}" for text in asked.k)]
        for mutant in mutants:
            mutant.applied_to((REPOSITORY / mutant.file).read_text())
        with tempfile.TemporaryDirectory(prefix="kvstore-mutants-") as scratch:
            return run(mutants, Runner(Path(scratch), asked.jobs), asked.at_least, asked.results)
    except MutantError as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2


def run(mutants: Sequence[Mutant], runner: Runner, at_least: float, results: Path | None) -> int:
    equivalent = [mutant for mutant in mutants if mutant.equivalent]
    tried = [mutant for mutant in mutants if not mutant.equivalent]
    runner.check_all(tried)
    outcomes = []
    for outcome in runner.outcomes(tried):
        outcomes.append(outcome)
        print(f"{outcome.verdict:<9} {outcome.seconds:6.1f} s  {outcome.mutant.name}", flush=True)
    survived = [outcome.mutant for outcome in outcomes if not outcome.seen]
    for mutant in survived:
        print(f"\nno test sees {mutant.name}: {mutant.file}, run with {mutant.tests}")
        print(
            "\n".join(
                [
                    *(f"-{line}" for line in mutant.old.splitlines()),
                    *(f"+{line}" for line in mutant.new.splitlines()),
                ]
            )
        )
    seen = len(outcomes) - len(survived)
    score = 100 * seen / len(outcomes) if outcomes else 100.0
    print(
        f"\n{len(mutants)} changes: {seen} of {len(outcomes)} seen ({score:.1f} %), {len(equivalent)} equivalent"
    )
    if results is not None:
        results.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {"name": o.mutant.name, "verdict": o.verdict, "seconds": round(o.seconds, 1)} for o in outcomes
        ]
        results.write_text(json.dumps({"score": score, "mutants": rows}, indent=1) + "\n")
    return 0 if score >= at_least else 1


if __name__ == "__main__":
    sys.exit(main())
