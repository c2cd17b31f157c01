"""Children of `kvstore up`: restarted when they crash, ended for good when asked."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvstore.cli import supervisor as module
from kvstore.cli.supervisor import ChildFailed, ChildSpec, Supervisor
from support.processes import process_is_gone

# A stand-in for a kvstore command: it announces itself and waits, or does what its first argument says.
CHILD = """
import json, os, signal, sys, time
mode, runs = sys.argv[1], sys.argv[2]
if mode == "fail":
    sys.exit(3)
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("not JSON")
print(json.dumps({"event": "listening", "pid": os.getpid(), "runs": runs}), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    "command", [("-c", "from kvstore.cli.entry import main; main()"), module.CHILD_COMMAND[1:]]
)
def test_ctrl_c_while_it_loads_ends_a_command_without_a_word(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    loads_slowly = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    (tmp_path / "typer.py").write_text(loads_slowly)
    done = subprocess.run(
        [sys.executable, *command, "version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


@pytest.fixture
async def supervisor(monkeypatch: pytest.MonkeyPatch, tmp_path) -> AsyncIterator[Supervisor]:  # type: ignore[no-untyped-def]
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    monkeypatch.setattr(module, "CHILD_COMMAND", (sys.executable, str(script)))
    reports: list[str] = []
    running = Supervisor(reports.append)
    running.reports = reports  # type: ignore[attr-defined]
    yield running
    await running.stop()


class Recorder:
    """A child spec that records announcements and counts its starts."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.starts = 0
        self.seen: list[dict[str, object]] = []

    def spec(self) -> ChildSpec:
        return ChildSpec("child", self._arguments, "listening", self.seen.append)

    def _arguments(self) -> list[str]:
        self.starts += 1
        return [self.mode, str(self.starts)]


async def until(condition, what: str) -> None:  # type: ignore[no-untyped-def]
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"waited 10 s in vain: {what}")


async def test_a_crashed_child_is_started_again_and_said_so(supervisor: Supervisor) -> None:
    recorder = Recorder("serve")
    child = await supervisor.start_child(recorder.spec(), 20)
    os.kill(child.pid, signal.SIGKILL)
    await until(lambda: len(recorder.seen) == 2, "it announced itself again")
    assert [announcement["runs"] for announcement in recorder.seen] == ["1", "2"]
    assert child.restarts == 1
    assert supervisor.reports[0].startswith("child was killed by SIGKILL; starting it again")  # type: ignore[attr-defined]


async def test_a_child_that_never_gets_ready_is_a_failure_and_is_not_left_behind(
    supervisor: Supervisor,
) -> None:
    with pytest.raises(ChildFailed, match="child exited with code 3"):
        await supervisor.start_child(Recorder("fail").spec(), 20)


async def test_a_child_that_is_not_ready_in_time_is_ended(supervisor: Supervisor) -> None:
    recorder = Recorder("serve")
    spec = ChildSpec("child", lambda: ["serve", "1"], "never", recorder.seen.append)
    with pytest.raises(ChildFailed, match="not ready within 2 s"):
        await supervisor.start_child(spec, 2)
    assert process_is_gone(int(recorder.seen[0]["pid"]))  # type: ignore[call-overload]


@pytest.mark.parametrize("mode", ["serve", "deaf"])
async def test_stop_ends_a_child_even_one_that_ignores_sigterm(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(module, "STOP_TIMEOUT_S", 0.5)
    child = await supervisor.start_child(Recorder(mode).spec(), 20)
    pid = child.pid
    await supervisor.stop()
    assert process_is_gone(pid)
    assert child.restarts == 0


async def test_stop_ends_a_child_that_is_stopped_by_a_signal(supervisor: Supervisor) -> None:
    child = await supervisor.start_child(Recorder("serve").spec(), 20)
    pid = child.pid
    os.kill(pid, signal.SIGSTOP)
    await supervisor.stop()
    assert process_is_gone(pid)
