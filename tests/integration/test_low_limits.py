"""Servers under limits and in folders with which they can't work: one line says which it is and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.common.process_limits import ADDRESSES_MIN, FILES_MIN, limit_in_the_way

MIB = 1 << 20


def command(kind: str, directory: Path) -> list[str]:
    if kind == "master":
        ports = ("--directory-port=0", "--control-port=0", "--http-port=0")
        return [kind, *ports, f"--metadata=rocksdb://{directory}"]
    options = ["--port=0", "--http-port=0", "--masters=127.0.0.1:9", "--capacity=64MiB", "--unix-path=off"]
    return [kind, *options, f"--data-dir={directory}"]


def refused(words: list[str], enter: tuple[str, ...]) -> str:
    """What a command says that does not start; it ends by itself, without a traceback."""
    ended = subprocess.run(
        [*enter, sys.executable, "-m", "kvstore.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
        check=False,
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode == 1, said
    assert "Traceback" not in said and "traceback" not in said
    return said


def test_a_server_that_may_open_too_few_files_says_how_many_it_needs(tmp_path: Path) -> None:
    said = refused(command("segment", tmp_path / "data"), ("prlimit", "--nofile=24:24"))
    assert "only 24 files may be open" in said and "ulimit -Hn" in said


@pytest.mark.parametrize(("kind", "limit"), [("master", 200 * MIB), ("segment", 1040 * MIB)])
def test_a_server_without_addresses_for_its_threads_names_the_limit(
    kind: str, limit: int, tmp_path: Path
) -> None:
    said = refused(command(kind, tmp_path / "data"), ("prlimit", f"--as={limit}:{limit}"))
    assert f"RLIMIT_AS is {limit // MIB} MiB: raise it (ulimit -v unlimited)" in said


@pytest.mark.parametrize(("kind", "limit"), [("master", MIB), ("segment", 0)])
def test_a_server_whose_files_may_not_grow_names_the_limit_and_not_the_disk(
    kind: str, limit: int, tmp_path: Path
) -> None:
    said = refused(command(kind, tmp_path / "data"), ("prlimit", f"--fsize={limit}:{limit}"))
    assert "RLIMIT_FSIZE" in said and "ulimit -f unlimited" in said
    assert "ree space" not in said


def own_mount(directory: Path, then: str) -> tuple[str, ...]:
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    commands = f"mount -t tmpfs -o size=64k none {directory}; {then}"
    return ("unshare", "--mount", *user, "sh", "-c", f'set -e; cd {directory}; {commands}; exec "$@"', "sh")


def test_a_data_folder_on_a_full_or_read_only_file_system_is_named_with_what_helps(tmp_path: Path) -> None:
    mount, data = tmp_path, tmp_path / "data"
    full = own_mount(mount, f"dd if=/dev/zero of={mount}/rest bs=4k count=64 2>/dev/null || mkdir -p {data}")
    said = refused(command("segment", data), full)
    assert "No space left on device" in said and "ree space" in said and str(data) in said
    read_only = own_mount(mount, f"mkdir {data}; mount -o remount,ro {mount}")
    said = refused(command("segment", data), read_only)
    assert "ead-only file system" in said and "writable" in said and str(data) in said


def test_the_limits_of_this_machine_are_none_in_the_way() -> None:
    assert limit_in_the_way() == ""
    assert FILES_MIN < 256 and ADDRESSES_MIN <= 2 << 30, "what other tests run servers under"
