"""`make fuzz`: what it needs, and what it says when that is missing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = ROOT / "tools" / "fuzz.py"


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_command", COMMAND)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("compiler", ["no-such-compiler", "g++"])
def test_without_libfuzzer_it_says_what_to_install(fuzz: ModuleType, compiler: str) -> None:
    with pytest.raises(fuzz.Missing, match=r"apt-get install clang libclang-rt"):
        fuzz.check_compiler(compiler)


def test_a_target_that_there_is_none_of_is_refused_with_those_there_are() -> None:
    command = [sys.executable, str(COMMAND), "no_such_target"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    assert "segment_session" in run.stderr and "python" in run.stderr
