"""Checks what the build needs from the machine and says, one line a lack, how to get it. Needs nothing but Python.

usage: check_host.py [--sglang]

`--sglang` also checks for the OpenSSL headers: SGLang compiles its hash extension when it first runs.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PYTHON_MIN = (3, 10)


def compiles(source: str) -> bool:
    """Whether g++ accepts the source as C++17."""
    command = ["g++", "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    return subprocess.run(command, input=source.encode(), capture_output=True, timeout=60).returncode == 0


def lacks() -> list[str]:
    """What every build needs and this machine does not have."""
    if sys.version_info < PYTHON_MIN:
        return [
            f"Python {sys.version.split()[0]} is too old: 3.10 or newer is needed (make PYTHON=python3.11 ...)"
        ]
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


def openssl_lack() -> list[str]:
    """OpenSSL's headers, installed on the spot where that is possible (root on Debian)."""
    header = "#include <openssl/sha.h>"
    if compiles(header):
        return []
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print("OpenSSL's headers are missing: installing libssl-dev")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "libssl-dev"]):
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, timeout=600, check=False)
        if compiles(header):
            return []
    return ["OpenSSL's headers are missing (SGLang compiles against them): install the package libssl-dev"]


if __name__ == "__main__":
    missing = lacks()
    if not missing and "--sglang" in sys.argv[1:]:
        missing = openssl_lack()
    for line in missing:
        print(f"error: {line}", file=sys.stderr)
    sys.exit(1 if missing else 0)
