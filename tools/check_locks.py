"""Has clang's thread safety analysis check that what a mutex guards is touched under it: see native/base/mutex.hpp.

python3 tools/check_locks.py [--stamps FOLDER]

Looks at the sources of native/ that include base/mutex.hpp, themselves or by a header of theirs, and at those only that changed
since they last passed. Without clang++ it says so and passes: the compilers that build the product don't know the annotations.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HEADER = "base/mutex.hpp"
FLAGS = ("-std=c++17", "-fsyntax-only", "-Wthread-safety", "-Werror=thread-safety")
INCLUDE = re.compile(r'^ *# *include *"([^"]+)"', re.MULTILINE)
TIMEOUT_S = 300


def included(native: Path, file: Path) -> list[Path]:
    return [native / name for name in INCLUDE.findall(file.read_text()) if (native / name).is_file()]


def sources(native: Path) -> list[Path]:
    """Whose members are guarded: the annotations are private, so what includes such a header by another's can't touch them.
    The bindings need Python's headers, and have no mutex; tests and fuzz targets find their peers by paths of their own."""
    header = native / HEADER
    found = []
    for source in sorted(native.rglob("*.cpp")):
        if source.relative_to(native).parts[0] in ("bindings", "fuzz", "tests"):
            continue
        direct = included(native, source)
        if header in direct or any(header in included(native, other) for other in direct):
            found.append(source)
    return found


def digest(native: Path, source: Path, compiler: str) -> str:
    """Of everything that the answer depends on, but for the system's headers."""
    seen, unread = {source}, [source]
    while unread:
        for header in included(native, unread.pop()):
            if header not in seen:
                seen.add(header)
                unread.append(header)
    of = hashlib.sha256(" ".join((compiler, *FLAGS)).encode())
    for file in sorted(seen):
        of.update(f"\0{file.relative_to(native)}\0".encode() + file.read_bytes())
    return of.hexdigest()


def complaints(native: Path, source: Path) -> str:
    """What clang++ says; empty when all is well."""
    command = ["clang++", *FLAGS, f"-I{native}", str(source)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return "" if run.returncode == 0 else run.stderr or f"{source}: clang++ exits with {run.returncode}\n"


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stamps", type=Path, default=root / "build/locks", help="what passed is noted here")
    stamps: Path = parser.parse_args().stamps
    if shutil.which("clang++") is None:
        print("clang++ is not installed: what the mutexes of native/ guard is not checked")
        return 0
    native = root / "native"
    compiler = subprocess.run(["clang++", "--version"], capture_output=True, text=True, check=True).stdout

    def check(source: Path) -> str:
        stamp = stamps / source.relative_to(native).with_suffix(".passed")
        now = digest(native, source, compiler)
        if stamp.is_file() and stamp.read_text() == now:
            return ""
        found = complaints(native, source)
        if not found:
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.write_text(now)
        return found

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [text for text in pool.map(check, sources(native)) if text]
    sys.stderr.write("".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
