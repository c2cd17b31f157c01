"""Fixtures of the tests against a real SGLang. Run them with the python of an environment that has it
(see README.md).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
USUAL_TIMEOUT_S = 900
sys.path[:0] = [str(HERE), str(HERE / "shims")]
sys.path.append(
    str(HERE.parents[1] / "tools")
)  # the checkout itself stays out: the installed packages are tested

import cpu_shims  # noqa: E402

cpu_shims.install()  # before anything imports sglang

from sglang_harness.installed import shadowing_package, stale_install  # noqa: E402
from sglang_harness.worker_process import WorkerProcess  # noqa: E402

from support.processes import Cluster  # noqa: E402
from support.running_cluster import running_cluster  # noqa: E402


def pytest_sessionstart() -> None:
    """Refuses to test an installed package that is not the one of this checkout."""
    if (why := stale_install(HERE.parents[1])) is not None:
        pytest.exit(f"{why}: run `make sglang-venv`", returncode=pytest.ExitCode.USAGE_ERROR)
    if (why := shadowing_package()) is not None:
        pytest.exit(f"{why}: set PYTHONSAFEPATH=1", returncode=pytest.ExitCode.USAGE_ERROR)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder carries the `sglang` marker, and has time for SGLang to be imported. Whole servers, which
    have most time, come first, so that no worker is left with them in the end.
    """
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.sglang)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(USUAL_TIMEOUT_S))
    items.sort(key=may_take_s, reverse=True)


def may_take_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return USUAL_TIMEOUT_S if marker is None else float(marker.args[0])


@pytest.fixture(scope="session")
def session_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs and data of everything that lives for the whole session."""
    return tmp_path_factory.mktemp("sglang")


@pytest.fixture(scope="session")
def store(session_dir: Path) -> Iterator[Cluster]:
    """A master and a segment that stay up for the whole session."""
    with running_cluster(session_dir / "store", capacity="256MiB") as processes:
        yield processes


@pytest.fixture(scope="session")
def workers(session_dir: Path) -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    """A writer and a reader: two processes that have imported SGLang once."""
    with WorkerProcess("writer", session_dir) as writer, WorkerProcess("reader", session_dir) as reader:
        writer.wait_ready()
        reader.wait_ready()
        yield writer, reader
