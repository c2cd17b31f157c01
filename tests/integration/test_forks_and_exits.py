"""How a process with a client ends: in a forked child, and in the middle of calls."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import Cluster
from support.running_cluster import running_cluster


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("store")) as processes:
        yield processes


def run_script(script: str, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """The script as a process of its own, as an engine is one."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=Path(__file__).parents[2],
        check=False,
    )


def assert_clean(outcome: subprocess.CompletedProcess[str]) -> None:
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "", "")


def test_a_forked_child_that_ends_leaves_its_parents_shared_memory_as_it_is(store: Cluster) -> None:
    outcome = run_script(
        """
        import os, random, sys
        from kvstore_client import Client, SharedBuffer

        SIZE = 1 << 20
        value = random.Random(5).randbytes(SIZE)
        buffer = SharedBuffer(SIZE)
        memoryview(buffer)[:] = value
        client = Client(sys.argv[1], deadline_ms=5000)
        space = client.namespace("fork")
        assert space.put("before", buffer)
        child = os.fork()
        if child == 0:
            try:
                memoryview(buffer)
            except BufferError:
                client.close()
                sys.exit(0)  # as a worker of an engine does: everything is taken down
            sys.exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert bytes(buffer) == value
        assert space.put("after", buffer)
        assert space.get("before") == value
        assert space.get("after") == value
        """,
        store.masters,
    )
    assert_clean(outcome)


IN_CALLS = """
    import os, sys, threading, time
    from kvstore_client import Client

    masters, verb, segment = sys.argv[1], sys.argv[2], int(sys.argv[3])
    client = Client(masters, deadline_ms=20000)
    space = client.namespace("exit")
    keys = [f"key {number}" for number in range(64)]
    values = [os.urandom(1 << 16) for _ in keys]
    # What an engine's storage threads work on: raw pointers into memory that goes at exit.
    buffers = [bytearray(1 << 16) for _ in keys]
    assert all(space.batch_put(keys, values)), client.stats()
    if segment:
        os.kill(segment, 19)  # SIGSTOP: the calls below hang
    calls = {
        "get": lambda: space.batch_get_into(keys, buffers),
        "put": lambda: space.batch_put([f"{key} {time.monotonic()}" for key in keys], values),
        "exists": lambda: space.batch_exists(keys, pin_ms=1000),
        "fetch": lambda: space.batch_get(keys),
    }
    started = threading.Semaphore(0)

    def work() -> None:
        while True:
            started.release()
            calls[verb]()

    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(4 if segment else 40):
        started.acquire()
"""


@pytest.mark.parametrize("verb", ["get", "put", "exists", "fetch"])
def test_a_process_that_exits_in_the_middle_of_calls_exits_silently_with_0(store: Cluster, verb: str) -> None:
    for _ in range(8):
        assert_clean(run_script(IN_CALLS, store.masters, verb, "0"))


@pytest.mark.parametrize("verb", ["get", "put", "exists"])
def test_a_process_exits_at_once_and_silently_while_its_calls_hang(store: Cluster, verb: str) -> None:
    segment = next(iter(store.segments.values()))
    try:
        began = time.monotonic()
        assert_clean(run_script(IN_CALLS, store.masters, verb, str(segment.pid)))
        assert time.monotonic() - began < 10, "not the deadline of the calls"
    finally:
        segment.resume()
