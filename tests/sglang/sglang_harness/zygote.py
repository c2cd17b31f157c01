"""SGLang servers forked from a process that has imported SGLang once.

A server is three processes, each of which imports SGLang for 10-20 s of CPU before it does anything. Here one process, the
zygote, has imported it, and has but one thread; each server is a fork of it that runs `sglang.launch_server` as
`python -m` does, and its schedulers are forks again where SGLang would spawn new interpreters. What runs is the same code.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import json
import multiprocessing
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

SHIMS = Path(__file__).resolve().parent.parent / "shims"
SERVER_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(SHIMS),
}
"""What every server runs with."""
START_TIMEOUT_S = 600.0  # importing SGLang on a busy machine
FORK_TIMEOUT_S = 60.0
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Launch:
    """One server: the options of `sglang.launch_server`, environment variables beside the zygote's, and its log."""

    flags: list[str]
    environment: dict[str, str]
    log_path: str


class ServerProcess:
    """The first process of a server, which leads a process group of its own."""

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None = None) -> None:
        """`child`: where it is one of this process's own, to be waited for."""
        self.pid = pid
        self._child = child
        try:
            self._pidfd: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._pidfd = None  # it has ended already

    def has_ended(self, within_s: float = 0.0) -> bool:
        """Whether it has, waiting so long for it."""
        if self._pidfd is None:
            return True
        if not select.select([self._pidfd], [], [], within_s)[0]:
            return False
        os.close(self._pidfd)
        self._pidfd = None
        if self._child is not None:
            self._child.wait()
        return True

    def signal_group(self, number: signal.Signals) -> None:
        """To all that is left of its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class Zygote:
    """The test's end of the zygote."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # until close
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from sglang_harness.zygote import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ | SERVER_ENVIRONMENT | {"PYTHONPATH": f"{SHIMS.parent}:{SHIMS}"},
            cwd=tempfile.gettempdir(),
        )
        try:
            self._answer(START_TIMEOUT_S)
        except BaseException:
            self._process.kill()
            self.close()
            raise

    def close(self) -> None:
        """Ends it, and what still runs of its servers; the time that they took counts as this process's then."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._process.stdout.close()
        self._log.close()

    def launch(self, launch: Launch) -> ServerProcess:
        """Starts one server; returns at once."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(launch)).encode() + b"\n")
        self._process.stdin.flush()
        return ServerProcess(int(self._answer(FORK_TIMEOUT_S)))

    def _answer(self, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise AssertionError(f"the zygote is silent for {timeout_s:g} s\n{self._log_text()}")
        line = self._process.stdout.readline()
        assert line, f"the zygote has ended\n{self._log_text()}"
        return line

    def _log_text(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")


@functools.cache
def the_zygote() -> Zygote:
    """This test process's, started when it is first asked for."""
    zygote = Zygote()
    atexit.register(zygote.close)
    return zygote


def spawn_server(launch: Launch) -> ServerProcess:
    """The same server as users start it: new interpreters that import SGLang for themselves."""
    with open(launch.log_path, "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "sglang.launch_server", *launch.flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | SERVER_ENVIRONMENT | launch.environment,
            cwd=Path(launch.log_path).parent,
            process_group=0,
        )
    return ServerProcess(process.pid, process)


# ---- inside the zygote ------------------------------------------------------------------------------------------------


def main() -> None:
    """Imports all that a server imports, then starts one for each line on stdin, until there are no more."""
    import sglang.launch_server
    import sglang.srt.entrypoints.http_server
    import sglang.srt.managers.scheduler
    import sglang.srt.models.registry  # noqa: F401

    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, (
        f"only a process of one thread can be forked safely; this one has {len(threads)}"
    )
    gc.freeze()  # no server's collector looks through all that again
    # Reaped one by one, also those whose own parent was killed, so that the time they took counts as this process's.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    servers: set[int] = set()
    signal.signal(signal.SIGCHLD, lambda *_: _reap(servers))
    print(0, flush=True)
    for line in sys.stdin:
        launch = Launch(**json.loads(line))
        pid = os.fork()
        if pid == 0:
            _become_server(launch)
        servers.add(pid)
        with contextlib.suppress(OSError):  # it has done so itself, or has ended
            os.setpgid(pid, pid)
        print(pid, flush=True)
    # The test process has ended, or was killed and could stop none of them.
    for pid in list(servers):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    _reap(servers)


def _reap(servers: set[int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            servers.discard(pid)


def _become_server(launch: Launch) -> None:
    """Never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    with open(launch.log_path, "wb") as log, open(os.devnull, "rb") as nothing:
        for source, descriptor in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source.fileno(), descriptor)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ.update(launch.environment)
    os.chdir(Path(launch.log_path).parent)
    _fork_where_sglang_spawns()
    sys.argv = ["sglang.launch_server", *launch.flags]
    status = 1
    try:
        runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _fork_where_sglang_spawns() -> None:
    choose = multiprocessing.set_start_method

    def choose_fork(method: str, force: bool = False) -> None:
        assert method == "spawn", method
        choose("fork", force=force)

    multiprocessing.set_start_method = choose_fork


def environment_of(ranks: int, more: Mapping[str, str]) -> dict[str, str]:
    """What a server of so many ranks needs beside SERVER_ENVIRONMENT, and `more`."""
    if ranks == 1:
        return dict(more)
    cores = sorted(os.sched_getaffinity(0))
    # A core for each rank, of those that this process may use: without it SGLang wants a NUMA node a rank.
    bind = "|".join(str(cores[rank % len(cores)]) for rank in range(ranks))
    return {"SGLANG_CPU_OMP_THREADS_BIND": bind, "GLOO_SOCKET_IFNAME": "lo", **more}
