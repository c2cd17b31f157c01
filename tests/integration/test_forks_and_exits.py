"""How a process with a client ends: in a forked child, and in the middle of calls."""

from __future__ import annotations

import subprocess
import sys
import textwrap
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
