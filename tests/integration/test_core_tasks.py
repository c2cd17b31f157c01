"""No task that a server lives by ends unnoticed: it is started again, or it ends the process. A new one can't be forgotten."""

from __future__ import annotations

import ast
import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from kvstore.common import core_tasks
from kvstore.common.config.segment import SegmentSettings
from kvstore.common.core_tasks import core_task_restarts, running_core_tasks
from kvstore.common.errors import CoreTaskEnded, KvstoreError
from kvstore.common.http_endpoint import HttpEndpoint
from kvstore.common.process_status import ProcessStatus
from kvstore.master.directory import Directory
from kvstore.master.ha.replica import Replica
from kvstore.master.metadata.store import Fence
from kvstore.master.metrics import MasterMetrics
from kvstore.master.roles import Roles
from kvstore.master.server import MasterServer
from kvstore.master.state.directory_state import Recovered, StateLimits
from kvstore.master.state.placement import POLICIES
from kvstore.segment.server import SegmentServer
from support.master_peers import settings, until
from support.memory_replicated_store import MemoryReplicatedStore
from support.state_rig import StateRig

REPOSITORY = Path(__file__).resolve().parents[2]

MASTER = {
    "committer",
    "directory-copy-trimmer",
    "directory-data-path-probes",
    "directory-drains",
    "directory-tick",
    "directory-store-watch",
    "directory-store-upkeep",
    "metadata-carry-over",
    "status-port",
}
WATCHING = {  # of them: they begin anew at any moment
    "directory-copy-trimmer",
    "directory-data-path-probes",
    "directory-drains",
    "directory-store-watch",
    "directory-store-upkeep",
    "metadata-carry-over",
}
SEGMENT = {"keep-unix-socket", "watch-limits", "watch-refusals", "watch-retention", "status-port"}
STANDBY = {"replica", "follower", "follower-lag", "follower-reload", "map-mirror"}

# Tasks of a running server that no CoreTasks has: who notices their end.
NOTICED_OTHERWISE = {
    "control-client": "SegmentServer.failed() raises what ended it",
    "attach": "awaited by the control client, which attaches again",
    "attach-read": "awaited by the attach session, which ends with it",
    "attach-link": "awaited by the attach session, which ends with it",
    "heartbeat": "beats while a link is sought: its end is logged, and without it the segment is suspect until it has one",
    "link-taking": "an error of it closes the segment's link, and the segment attaches again",
    "follower-updates": "awaited by the follower, which begins anew",
    "follower-went-back": "awaited by the follower",
    "metadata-rocksdb": "its end is the end of RocksDB's process, which is started again",
    "attach-reader": "its end closes the segment's stream, and the segment attaches again",
}

# Where the servers make tasks or threads themselves: what becomes of them.
MADE_OUTSIDE = {
    ("common/core_tasks.py", "_start"): "the supervisor",
    ("common/core_tasks.py", "_keep"): "the supervisor",
    ("common/http_endpoint.py", "start"): "the thread of the status port: `ended` is a core task",
    (
        "common/http_endpoint.py",
        "_keep",
    ): "the end of an accept loop ends that thread; the rest are single requests",
    ("common/loop_watchdog.py", "start"): "/healthz says 503 when it has ended",
    ("common/log_writer.py", "__init__"): "writes for as long as the process lives, or until nobody reads",
    ("common/names.py", "look_up"): "one look-up, awaited",
    ("common/names.py", "look_up_patiently"): "awaited",
    ("common/starting.py", "finish_unless"): "awaited",
    ("master/server.py", "run"): "awaited",
    ("master/data_path_probe.py", "_begin_probes"): "whatever ends one is the probe's answer",
    ("master/drains.py", "run"): "one drain: what it raises is raised by the core task, which begins anew",
    ("master/drains.py", "order"): "awaited by the drain, which raises what one raised",
    ("master/ha/fresh_reads.py", "caught_up"): "awaited by the reads that it is for",
    ("master/ha/replica.py", "_within_tenure"): "awaited",
    ("master/ha/follower.py", "_follow"): "awaited",
    ("master/metadata/etcd_election.py", "campaign"): "the lease's renewal: its end is the end of the tenure",
    ("master/metadata/etcd_watch.py", "_read"): "awaited",
    (
        "master/metadata/blocking_calls.py",
        "run",
    ): "each call is awaited; whatever one raises goes to who waits",
    ("master/metadata/carry_over.py", "_sleep"): "awaited",
    ("master/metadata/rocksdb_client.py", "start"): "`ended` says so, and the process is started again",
    ("master/ports/control_port.py", "stop"): "waited for, with a bound",
    ("master/ports/control_service.py", "Attach"): "its end closes the stream",
    ("master/ports/directory_port.py", "_wait_for"): "one request: its end is the answer",
    ("master/ports/segment_link.py", "_take_in_turn"): "an error of it closes the segment's link",
    ("segment/server.py", "_start"): "awaited by failed()",
    ("segment/copying.py", "take"): "one order: whatever becomes of it is the answer",
    ("segment/pool_making.py", "make"): "awaited",
    ("segment/run.py", "_serve"): "awaited",
    ("segment/run.py", "_drain"): "awaited",
    ("segment/control_client.py", "_attach"): "awaited",
    ("segment/control_client.py", "_start_beating"): "beats while a link is sought; its end is logged",
    ("segment/attach_session.py", "_converse"): "awaited",
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_tasks, "RESTART_DELAY_S_MIN", 0.01)


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[MasterServer]:
    server = MasterServer(settings(tmp_path))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def segment(master: MasterServer, tmp_path: Path) -> AsyncIterator[SegmentServer]:
    server = SegmentServer(
        SegmentSettings(
            masters=(f"127.0.0.1:{master.control_port}",),
            capacity="16MiB",
            port=0,
            http_port=0,
            unix_path=str(tmp_path / "segment.sock"),
            data_dir=tmp_path / "segment",
            pool_path="off",
        )
    )
    await server.start()
    assert await server.wait_attached(15)
    yield server
    await server.stop()


class Standby:
    def __init__(self) -> None:
        self.store = MemoryReplicatedStore()
        self.roles = Roles()
        self.failures: list[KvstoreError] = []
        self.replica = Replica(
            self.store, self.roles, MasterMetrics(), self._leads, self.failures.append, token=""
        )

    def _leads(self, fence: Fence, recovered: Recovered) -> Directory:
        return Directory(
            self.store,
            fence,
            recovered,
            StateLimits(),
            POLICIES["host-first"](random.Random(1)),
            MasterMetrics(),
            run_bytes=1 << 20,
            on_fenced=lambda error: None,
            on_failed=self.failures.append,
        )


@pytest.fixture
async def standby() -> AsyncIterator[Standby]:
    standby = Standby()
    await StateRig(store=standby.store).start()
    await standby.replica.start()
    await until(lambda: names_of(running_core_tasks()) >= STANDBY, "it follows")
    yield standby
    await standby.replica.stop()


def names_of(tasks: list[asyncio.Task[None]]) -> set[str]:
    return {task.get_name() for task in tasks}


async def test_every_task_of_running_servers_is_supervised_or_its_end_is_noticed(
    master: MasterServer, segment: SegmentServer, standby: Standby
) -> None:
    assert names_of(running_core_tasks()) == MASTER | SEGMENT | STANDBY
    supervised = set(running_core_tasks())
    for task in asyncio.all_tasks() - supervised - {asyncio.current_task()}:
        code = getattr(task.get_coro(), "cr_code", None)
        if code is None or f"{REPOSITORY}/kvstore/" not in code.co_filename:
            continue  # gRPC's, or the test's
        assert task.get_name() in NOTICED_OTHERWISE, (
            f"{task}: start it by CoreTasks, or say who notices its end"
        )


def kill(name: str, among: list[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    killed = {task for task in among if task.get_name() == name}
    assert killed, f"no {name} runs"
    for task in killed:
        task.cancel()
    return killed


async def outcome(name: str, killed: set[asyncio.Task[None]], failure: asyncio.Future[None]) -> str:
    """ "restarted" or "ended", whichever comes; it fails when neither does."""
    before = core_task_restarts().get(name, 0)

    def restarted() -> bool:
        again = any(task.get_name() == name and task not in killed for task in running_core_tasks())
        return again and core_task_restarts().get(name, 0) == before + 1

    await until(lambda: restarted() or failure.done(), f"the end of {name} is noticed")
    if not failure.done():
        return "restarted"
    with pytest.raises(CoreTaskEnded, match=name):
        failure.result()
    return "ended"


@pytest.mark.parametrize("name", sorted(MASTER))
async def test_the_end_of_a_masters_task_is_mended_or_ends_it(master: MasterServer, name: str) -> None:
    async def failed() -> None:
        await master.failed.wait()
        master.check()

    failure = asyncio.ensure_future(failed())
    killed = kill(name, running_core_tasks())
    expected = "restarted" if name in WATCHING else "ended"
    assert await outcome(name, killed, failure) == expected
    failure.cancel()
    assert master._readiness()[0] == (expected == "restarted")


async def test_the_end_of_the_status_ports_thread_ends_the_master(master: MasterServer) -> None:
    master._http._loop.call_soon_threadsafe(master._http._loop.stop)
    await until(master.failed.is_set, "it is noticed")
    with pytest.raises(CoreTaskEnded, match="status-port"):
        master.check()


@pytest.mark.parametrize("name", [*sorted(SEGMENT), "control-client"])
async def test_the_end_of_a_segments_task_is_mended_or_ends_it(segment: SegmentServer, name: str) -> None:
    failure = asyncio.ensure_future(segment.failed())
    await asyncio.sleep(0)
    if name == "control-client":
        killed = kill(name, [*asyncio.all_tasks()])
    else:
        killed = kill(name, list(segment._tasks._tasks))
    expected = "restarted" if name in SEGMENT - {"status-port"} else "ended"
    assert await outcome(name, killed, failure) == expected
    failure.cancel()


@pytest.mark.parametrize("name", sorted(STANDBY))
async def test_the_end_of_a_standbys_task_is_mended_or_ends_it(standby: Standby, name: str) -> None:
    async def failed() -> None:
        await until(lambda: standby.failures, "it fails")
        raise standby.failures[0]

    failure = asyncio.ensure_future(failed())
    killed = kill(name, running_core_tasks())
    expected = "restarted" if name in ("follower-lag", "follower-reload", "map-mirror") else "ended"
    assert await outcome(name, killed, failure) == expected
    failure.cancel()


def made() -> Iterator[tuple[str, str]]:
    """(file, function) of each task or thread that the servers make."""
    for room in ("common", "master", "segment"):
        for path in (REPOSITORY / "kvstore" / room).rglob("*.py"):
            for function in ast.walk(ast.parse(path.read_text())):
                if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                for node in ast.walk(function):
                    called = getattr(node, "func", None)
                    if getattr(called, "attr", getattr(called, "id", "")) in (
                        "create_task",
                        "ensure_future",
                        "Thread",
                    ):
                        yield str(path.relative_to(REPOSITORY / "kvstore")), function.name


def test_each_place_that_makes_a_task_or_thread_by_itself_says_what_becomes_of_it() -> None:
    places = set(made())
    assert sorted(places - set(MADE_OUTSIDE)) == [], "start it by CoreTasks, or say here who notices its end"
    assert sorted(set(MADE_OUTSIDE) - places) == [], "these are gone"


async def test_a_status_page_that_is_told_to_stop_has_not_ended_by_itself() -> None:
    process = ProcessStatus("kvstore_test_")
    page = HttpEndpoint("127.0.0.1", 0, CollectorRegistry(), lambda: (True, "ready"), process)
    await page.start()
    ended = asyncio.create_task(page.ended())
    await page.stop()
    for _ in range(10):  # its thread is over: what it had to say has been said
        await asyncio.sleep(0)
    assert not ended.done()
    ended.cancel()
