"""Tests that run at the same time: those that are `alone` really are, and every test runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"

# Each test appends "begin" and "end" to one file; appends of a few bytes are atomic.
TESTS = """
import os, pathlib, pytest, time
FILE = pathlib.Path(__file__).with_name("log")
def note(text):
    with open(FILE, "a") as log:
        log.write(text + "\\n")
def body(kind):
    note(f"begin {kind}")
    time.sleep(0.05)
    note(f"end {kind}")
@pytest.mark.parametrize("n", range(12))
def test_beside(n): body("beside")
def test_short_path(tmp_path):
    assert "popen" not in str(tmp_path)
@pytest.mark.alone
@pytest.mark.parametrize("n", range(4))
def test_alone(n): body("alone")
"""


@pytest.mark.parametrize("options", [(), ("-n", "2", "--rounds", "2")])
def test_what_is_alone_begins_when_all_others_have_ended(tmp_path: Path, options: tuple[str, ...]) -> None:
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  alone: nothing beside it\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    rounds = 2 if "--rounds" in options else 1
    assert f"{17 * rounds} passed" in done.stdout, done.stdout + done.stderr
    running: list[str] = []
    most = 0
    for line in (tmp_path / "log").read_text().splitlines():
        word, kind = line.split()
        if word == "begin":
            assert "alone" not in running
            assert kind == "beside" or not running
            running.append(kind)
        else:
            running.remove(kind)
        most = max(most, len(running))
    assert (most > 1) == bool(options)
