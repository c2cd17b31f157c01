"""What servers leave in memory and in temporary folders when they have ended: nothing but the pool that was to be kept."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore_client import Client
from support import pages
from support.processes import ServerProcess, wait_gone
from support.waiting import wait_until


@pytest.fixture
def own_memory() -> Iterator[tuple[tuple[str, ...], Path]]:
    """(what a command begins with to see a /dev/shm of its own, where that is seen from here)."""
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    mount = "mount -t tmpfs -o size=1g none /dev/shm && echo ready && exec sleep 600"
    holder = subprocess.Popen(
        ["unshare", "--mount", *user, "sh", "-c", mount],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "ready\n"
        enter = ("nsenter", f"--target={holder.pid}", "--mount")
        if os.geteuid() != 0:
            enter += ("--user", "--preserve-credentials")
        yield enter, Path(f"/proc/{holder.pid}/root/dev/shm")
    finally:
        holder.kill()
        holder.wait(10)
        if holder.stdout is not None:
            holder.stdout.close()


def left_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.mark.parametrize("pool_path", ["off", "auto"])
def test_a_store_that_was_stopped_leaves_its_kept_pool_alone_also_after_one_that_was_killed(
    own_memory: tuple[tuple[str, ...], Path], tmp_path: Path, pool_path: str
) -> None:
    enter, memory = own_memory
    temporary, runtime = tmp_path / "tmp", tmp_path / "run"
    temporary.mkdir()
    runtime.mkdir(mode=0o700)
    environment = {"TMPDIR": str(temporary), "XDG_RUNTIME_DIR": str(runtime)}
    ports = [f"--{name}-port=0" for name in ("directory", "control", "data", "http", "master-http")]
    words = ["up", "--size=64MiB", f"--data-dir={tmp_path / 'data'}", f"--pool-path={pool_path}", *ports]
    for how in ("killed", "stopped"):
        store = ServerProcess(words, tmp_path / f"{how}.log", environment, enter)
        try:
            up = store.wait_event("up")
            with Client(up["masters"], deadline_ms=5000) as client:
                namespace = client.namespace("left")
                assert namespace.put(how, pages.content(how))
                assert namespace.get(how) == pages.content(how)
            pids = list(up["pids"].values())
            if how == "killed":
                for pid in (*pids, store.pid):
                    os.kill(pid, signal.SIGKILL)
                wait_gone(pids)
            else:
                assert store.stop() == 0
                wait_gone(pids)
        finally:
            store.close()
    kept = {f"kvstore-{up['segment']['segment_id']}"} if pool_path == "auto" else set()
    wait_until(lambda: left_in(memory) == kept, f"{left_in(memory)} in /dev/shm is {kept}")
    assert left_in(temporary) == set()
    assert [str(path) for path in runtime.rglob("*") if not path.is_dir()] == []
