"""Fuzzes what takes bytes from outside, for as long as it is told: the targets of native/fuzz with libFuzzer, tests/fuzz with hypothesis.

usage: fuzz.py [--seconds S] [--jobs N] [TARGET]

TARGET: a native target (segment_session, ...), `python`, or nothing: all of them. S: for each of them. What is found ends the run with
its input and the command that replays it; inputs that reach new code are kept in build/fuzz/corpus and begun with the next time.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BUILD = Path("build/fuzz")
CORPUS = BUILD / "corpus"
FINDINGS = BUILD / "findings"
TARGETS = Path("native/fuzz/targets")
PYTHON = "python"
# Of one input, and of what the code may ask for at a time: all but a few take microseconds and kilobytes.
LIMITS = ("-timeout=60", "-rss_limit_mb=2048", "-malloc_limit_mb=512", "-max_len=16384")
PROBE = 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n'
# A round of the Python tests draws so many times the examples of `make test`.
FACTOR = 5


class Missing(Exception):
    """What fuzzing needs is not installed; the text says what to install."""


def check_compiler(compiler: str) -> None:
    """Raises Missing unless `compiler` is a clang++ that has libFuzzer."""
    remedy = "on Debian: apt-get install clang libclang-rt-14-dev (of clang's version)"
    with tempfile.TemporaryDirectory() as directory:
        command = [compiler, "-x", "c++", "-", "-fsanitize=fuzzer,address", "-o", f"{directory}/probe"]
        try:
            probe = subprocess.run(command, input=PROBE, text=True, capture_output=True)
        except FileNotFoundError:
            raise Missing(f"libFuzzer needs {compiler}, which is not installed; {remedy}") from None
        if probe.returncode != 0:
            last = (probe.stderr.strip().splitlines() or ["?"])[-1]
            raise Missing(f"{compiler} can't link with libFuzzer's runtime ({last}); {remedy}")


def native_targets() -> list[str]:
    return sorted(source.stem.removeprefix("fuzz_") for source in TARGETS.glob("fuzz_*.cpp"))


def build(compiler: str, targets: list[str], jobs: int) -> None:
    """All in build/fuzz: the driver that writes the seeds, and libFuzzer's."""
    options = {
        "CMAKE_CXX_COMPILER": compiler,
        "KVSTORE_BUILD_PYTHON": "OFF",
        "KVSTORE_BUILD_TESTS": "ON",
        "KVSTORE_SANITIZE": "address",
        "KVSTORE_LIBFUZZER": "ON",
    }
    definitions = [f"-D{name}={value}" for name, value in options.items()]
    subprocess.run(
        ["cmake", "-S", ".", "-B", str(BUILD), "-G", "Ninja", *definitions],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    made = [name for target in targets for name in (f"fuzz_{target}", f"libfuzzer_{target}")]
    subprocess.run(["cmake", "--build", str(BUILD), "--parallel", str(jobs), "--target", *made], check=True)


def fuzz_native(target: str, seconds: int) -> bool:
    """Whether nothing was found."""
    binaries = BUILD / "native" / "fuzz"
    seeds, corpus = BUILD / "seeds" / target, CORPUS / target
    for directory in (seeds, corpus, FINDINGS):
        directory.mkdir(parents=True, exist_ok=True)
    subprocess.run([binaries / f"fuzz_{target}", "--write-seeds", seeds], check=True)
    limits = [f"-max_total_time={seconds}", f"-artifact_prefix={FINDINGS}/{target}-", *LIMITS]
    command = [
        str(binaries / f"libfuzzer_{target}"),
        *limits,
        "-print_final_stats=1",
        str(corpus),
        str(seeds),
    ]
    run = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
    last = re.findall(r"#\d+\s+\w+\s+(cov: \d+ ft: \d+ corp: \S+)", run.stderr)
    executed = re.search(r"number_of_executed_units: (\d+)", run.stderr)
    print(
        f"{target:<20} {executed[1] if executed else '?':>10} inputs  {last[-1] if last else ''}", flush=True
    )
    if run.returncode == 0:
        return True
    print(run.stderr[-6000:], file=sys.stderr)
    written = re.search(r"Test unit written to (\S+)", run.stderr)
    if written:
        again = f"{binaries / f'fuzz_{target}'} {written[1]}"
        print(f"{target}: FOUND SOMETHING. Again: {again}", file=sys.stderr)
    return False


def fuzz_python(seconds: int) -> bool:
    """Whether nothing was found."""
    end = time.monotonic() + seconds
    rounds = 0
    environment = {**os.environ, "KVSTORE_FUZZ_FACTOR": str(FACTOR)}
    while rounds == 0 or time.monotonic() < end:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "tests/fuzz",
            "--quiet",
            "--timeout",
            "3600",
            "-W",
            "ignore",
        ]
        if subprocess.run(command, env=environment).returncode != 0:
            print(
                "python: FOUND SOMETHING. Again: the same; hypothesis begins with what failed",
                file=sys.stderr,
            )
            return False
        rounds += 1
    print(f"{PYTHON:<20} {rounds:>10} rounds of {FACTOR} times the examples of make test", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="to compile with")
    parser.add_argument("--compiler", default="clang++")
    parser.add_argument("target", nargs="?", default="")
    arguments = parser.parse_args()
    known = [*native_targets(), PYTHON]
    if arguments.target and arguments.target not in known:
        parser.error(f"no target {arguments.target!r}; there are {', '.join(known)}")
    targets = [arguments.target] if arguments.target else known
    native = [target for target in targets if target != PYTHON]
    if native:
        try:
            check_compiler(arguments.compiler)
        except Missing as missing:
            print(missing, file=sys.stderr)
            return 2
        build(arguments.compiler, native, arguments.jobs)
    good = [fuzz_native(target, arguments.seconds) for target in native]
    if PYTHON in targets:
        good.append(fuzz_python(arguments.seconds))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
