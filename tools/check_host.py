"""Checks what the build needs from the machine and says, one line a lack, how to get it. Needs nothing but Python.

usage: check_host.py [--sglang | --mooncake]

`--sglang` also checks for the OpenSSL headers: SGLang compiles its hash extension when it first runs. Both also check for
libibverbs and libnuma, which Mooncake's engine links against: the benchmark's peer, and what carries pages between a prefill
and a decode server. They are installed on the spot by root on Debian.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

PYTHON_MIN = (3, 10)


def compiles(source: str) -> bool:
    """Whether g++ accepts the source as C++17."""
    command = ["g++", "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    return subprocess.run(command, input=source.encode(), capture_output=True, timeout=60).returncode == 0


def loads(library: str) -> bool:
    """Whether the shared library can be opened."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def build_lacks() -> list[str]:
    """What every build needs and this machine does not have."""
    if sys.version_info < PYTHON_MIN:
        version = sys.version.split()[0]
        return [f"Python {version} is too old: 3.10 or newer is needed (make PYTHON=python3.11 ...)"]
    found = []
    if importlib.util.find_spec("ensurepip") is None:
        found.append("Python's venv module is incomplete: install the package python3-venv")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        found.append("Python.h is missing: install the package python3-dev")
    if shutil.which("g++") is None:
        found.append("g++ is missing: install the package g++")
    elif not compiles("#include <optional>\nstd::optional<int> x;"):
        found.append("g++ does not compile C++17: GCC 9 or newer is needed")
    return found


def package_lacks(package: str, what: str, is_there: Callable[[], bool]) -> list[str]:
    """Installs a Debian package where that is possible, if `is_there` says that it is missing."""
    if is_there():
        return []
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"{what} missing: installing {package}", flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", package]):
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, timeout=600, check=False)
        if is_there():
            return []
    return [f"{what} missing: install the package {package}"]


def main() -> int:
    missing = build_lacks()
    if not missing and "--sglang" in sys.argv[1:]:
        header = "#include <openssl/sha.h>"
        missing = package_lacks("libssl-dev", "OpenSSL's headers are", lambda: compiles(header))
    if not missing and {"--sglang", "--mooncake"} & set(sys.argv[1:]):
        missing = package_lacks("libibverbs1", "libibverbs is", lambda: loads("libibverbs.so.1"))
        missing += package_lacks("libnuma1", "libnuma is", lambda: loads("libnuma.so.1"))
    for line in missing:
        print(f"error: {line}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
