"""Every process of a store is restarted, one after the other, while real SGLang controllers write and read: no engine call
fails, no byte is wrong, and what was acked is there afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sglang_harness.case import Case
from sglang_harness.worker_process import WorkerProcess

from support.etcd_server import Etcd
from support.processes import ServerProcess, segment_metrics
from support.replicated_cluster import ReplicatedCluster
from support.waiting import wait_until

SEGMENTS = ("one", "two", "three")
PAGES = 8
PROMPTS_MAX = 900  # of each engine: some 120 MiB, a third of what the segments hold
DEADLINE_MS = 3000
READABLE = 0.99


class RunningLoad:
    """One engine that works on until it is told to stop."""

    def __init__(self, worker: WorkerProcess, case: Case, directory: Path) -> None:
        self.worker, self.case = worker, case
        self._progress = directory / f"{worker.name}.stored"
        self._stop = directory / f"{worker.name}.stop"
        self._thread = ThreadPoolExecutor(1)
        self._report: Future[dict[str, Any]] = self._thread.submit(
            worker.call,
            "load",
            case,
            timeout_s=600.0,
            progress=str(self._progress),
            stop=str(self._stop),
            prompts_max=PROMPTS_MAX,
        )

    def stored(self) -> int:
        text = self._progress.read_text() if self._progress.exists() else ""
        return int(text or 0)

    def wait_progress(self, when: str, prompts: int = 3) -> None:
        """More prompts stored than now. One that has stored all that it may only reads."""
        wanted = min(self.stored() + prompts, PROMPTS_MAX)

        def there() -> bool:
            assert not self._report.done(), self._report.result()
            return self.stored() >= wanted

        wait_until(there, f"{self.worker.name} stores prompts {when}", 60)

    def finish(self) -> dict[str, Any]:
        self._stop.touch()
        try:
            return self._report.result()
        finally:
            self._thread.shutdown()


class Rig:
    """Three etcd members, two masters, three segments whose pools outlive them."""

    def __init__(self, directory: Path, pools: Path) -> None:
        self.etcd = Etcd(directory / "etcd", members=3)
        self._pools = pools
        self.cluster = ReplicatedCluster(directory, self.etcd.uri(ttl_s=3, commit_timeout_s=2))

    def start(self) -> None:
        self.etcd.start()
        self.cluster.start()
        for name in SEGMENTS:
            self.start_segment(name)

    def start_segment(self, name: str) -> ServerProcess:
        return self.cluster.start_segment(name, options=(f"--pool-path={self._pools / name}",))

    def close(self) -> None:
        self.cluster.close()
        self.etcd.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as pools:
        rig = Rig(tmp_path, Path(pools))
        try:
            rig.start()
            yield rig
        finally:
            rig.close()
            print(rig.cluster.logs())


def test_every_process_is_restarted_under_load_and_no_acked_page_is_lost(
    workers: tuple[WorkerProcess, WorkerProcess], rig: Rig, tmp_path: Path
) -> None:
    options = {"masters": rig.cluster.masters, "deadline_ms": DEADLINE_MS}
    transports = [{"same_host": False}, {"tcp": True}]
    loads = [
        RunningLoad(
            worker,
            Case(pages=PAGES, model_name="acme/rolling", seed=seed, options=options | transport)
            if seed == 1
            else Case(
                pages=PAGES,
                model_name="acme/rolling",
                seed=seed,
                token_base=500_000_000,
                options=options | transport,
            ),
            tmp_path,
        )
        for seed, (worker, transport) in enumerate(zip(workers, transports, strict=True), 1)
    ]

    def under_load(when: str) -> None:
        for load in loads:
            load.wait_progress(when)

    with ExitStack() as finishing:
        for load in loads:
            finishing.callback(load.finish)
        under_load("before the first restart")
        for member in rig.etcd.members:
            member.kill()
            under_load("with an etcd member away")
            member.start()
            member.wait_healthy()
        for master in (rig.cluster.standby(), rig.cluster.leader()):
            assert master.process.stop() == 0
            under_load("with a master away")
            master.start()
            master.wait_listening()
            rig.cluster.wait_formed()
        for name in SEGMENTS:
            segment = rig.cluster.segments[name]
            if name == "two":
                segment.kill()
            else:
                assert segment.stop() == 0
            under_load("with a segment away")
            segment.close()
            segment = rig.start_segment(name)
            metrics = segment_metrics(segment)
            assert metrics["object_count"] > 0, segment.log()
            assert metrics["control_inventories_sent"] == 0, segment.log()
        under_load("after the last restart")
        finishing.pop_all()
        reports = [load.finish() for load in loads]
    for report in reports:
        assert report["errors"] == [], report
        assert report["wrong_pages"] == 0
        assert report["slowest_s"] < 3 * DEADLINE_MS / 1000, (
            "no call takes longer than the deadlines of its steps"
        )
        assert report["pages_read"] > 0
    # Whoever reads them is not the one who wrote them, and knows no places.
    for load, report, reader in zip(loads, reports, reversed(workers), strict=True):
        found = reader.call("verify", load.case, timeout_s=300.0, stored_pages=report["stored_pages"])
        assert found["errors"] == [] and found["wrong_pages"] == 0
        assert found["pages_asked"] == sum(report["stored_pages"].values()) > 0
        assert found["pages_read"] >= READABLE * found["pages_asked"], (found, rig.cluster.logs())
        print(f"{found['pages_read']} of {found['pages_asked']} acked pages are readable")
