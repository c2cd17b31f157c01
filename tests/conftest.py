"""What all tests share: `support.<module>` for the helpers in tests/support, the marker `alone`, and --rounds.

With pytest-xdist (`make pytest` runs a worker a core) several tests run at a time. A test that is `alone` measures time as
its user would see it: nothing else runs meanwhile. Those come last.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

# What segments copy out of the memory of tests is the bytes that the test means, or the put fails.
os.environ.setdefault("KVSTORE_CLIENT_PUT_DIGESTS", "1")

# A pool that outlives its segment would outlive its test: those that are about it name a path.
os.environ.setdefault("KVSTORE_SEGMENT_POOL_PATH", "off")

# A shell ignores Ctrl-C for what it starts in the background, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

LOCKS = "kvstore_locks"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rounds", type=int, default=1, help="run each test so many times; for what fails rarely"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    rounds = metafunc.config.getoption("rounds")
    if rounds > 1:
        metafunc.fixturenames.append("round_number")
        metafunc.parametrize("round_number", range(rounds), ids=lambda number: f"round-{number}")


@pytest.fixture
def round_number() -> int:
    """Which of --rounds this is; for the names of tests only."""
    return 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


# ---- tests at the same time -------------------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """On the process that hands tests to workers: gives each the same locks."""
    directory = getattr(node.config, LOCKS, None)
    if directory is None:
        directory = tempfile.mkdtemp(prefix="kvstore-test-locks-")
        setattr(node.config, LOCKS, directory)
    node.workerinput[LOCKS] = directory


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """On a worker: gives it a folder with a short name. A unix socket's path has 107 bytes at most, and xdist would have
    all tmp_path begin with PATH/popen-gw1.
    """
    if hasattr(config, "workerinput") and config.option.basetemp:
        usual = Path(config.option.basetemp)
        config.option.basetemp = str(usual.with_name(usual.name.removeprefix("popen-gw")))


def pytest_unconfigure(config: pytest.Config) -> None:
    directory = getattr(config, LOCKS, None)
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.hookimpl(
    wrapper=True, tryfirst=True
)  # around pytest-timeout: to wait for others costs a test none of its time
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    directory = getattr(item.config, "workerinput", {}).get(LOCKS)
    if directory is None:
        return (yield)
    with beside_others(Path(directory), alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def beside_others(directory: Path, alone: bool) -> Iterator[None]:
    """Held while one test runs. Who wants to be alone holds the door while those inside finish, so it waits for one test."""
    with open(directory / "door", "w") as door, open(directory / "room", "w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield
