"""The master as a process of its own: killed, restarted on the same store, misconfigured."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.master_peers import DirectoryPeer, SegmentPeer, fingerprints
from support.waiting import wait_until

START_TIMEOUT_S = 30.0


class MasterProcess:
    """`python -m kvstore.master` on free ports; its log is read for the ports it got."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self._log = directory / "master.log"
        values = {
            "directory_port": "0",
            "control_port": "0",
            "http_port": "0",
            "metadata": f"rocksdb://{directory}/metadata",
            **settings,
        }
        environment = {f"KVSTORE_MASTER_{name.upper()}": value for name, value in values.items()}
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kvstore.master"], stderr=log, env={**os.environ, **environment}
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self._log.read_text().splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [event for event in events if event["event"] == name]

    def ready(self) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            assert self.process.poll() is None, self._log.read_text()
            events = self.events("master_ready")
            return events[0] if events else None

        event = wait_until(found, "the master is ready", START_TIMEOUT_S)
        assert event is not None
        return event

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(15)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(15)


async def test_killed_after_acked_batches_a_restarted_master_finds_every_page(tmp_path: Path) -> None:
    batches, found = 0, 0
    ns = b""
    term = 0
    for life in range(2):
        master = MasterProcess(tmp_path)
        try:
            ready = master.ready()
            peer = await DirectoryPeer.greeted(ready["directory_port"])
            opened = await peer.open_namespace(model="m")
            assert ns in (b"", opened)
            ns = opened
            assert peer.map_epoch >> 32 > term, "clients see a newer map"
            term = peer.map_epoch >> 32
            for batch in range(batches):
                # Before the segment is back: the records alone must do.
                found += sum(await peer.exists(ns, fingerprints(64, batch)))
            assert found == batches * 64
            found = 0
            segment = SegmentPeer(ready["control_port"])
            segment.last_seq = batches * 64
            registered = await segment.attach()
            assert (registered.durable_seq, registered.need_inventory) == (batches * 64, False)
            for _ in range(20):
                await segment.journal(ns, fingerprints(64, batches))
                await segment.acked()
                batches += 1
            # One more is on its way when the master dies: it may be durable or not, but never half.
            await segment.journal(ns, fingerprints(64, batches))
            assert master.end(signal.SIGKILL) == -signal.SIGKILL
            peer.close()
            await segment.close()
        finally:
            master.close()
        master = MasterProcess(tmp_path)
        try:
            ready = master.ready()
            peer = await DirectoryPeer.greeted(ready["directory_port"])
            last = await peer.exists(ns, fingerprints(64, batches))
            assert len(set(last)) == 1
            batches += all(last)
            peer.close()
            term = max(term, peer.map_epoch >> 32)
            assert master.end(signal.SIGTERM) == 0, life
            assert master.events("master_stopped")
        finally:
            master.close()


def test_wrong_settings_end_the_start_with_a_reason(tmp_path: Path) -> None:
    for name, value, reason in (
        ("PLACEMENT_POLICY", "nearest", "host-first"),
        ("HOST", "203.0.113.1", "203.0.113.1"),
    ):
        environment = {
            **os.environ,
            "KVSTORE_MASTER_METADATA": f"rocksdb://{tmp_path}/db",
            "KVSTORE_MASTER_DIRECTORY_PORT": "0",
            "KVSTORE_MASTER_CONTROL_PORT": "0",
            "KVSTORE_MASTER_HTTP_PORT": "0",
            f"KVSTORE_MASTER_{name}": value,
        }
        done = subprocess.run(
            [sys.executable, "-m", "kvstore.master"],
            env=environment,
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert done.returncode in (1, 2)
        assert reason in done.stderr.decode(), name
        assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_cleanly_with_clients_connected(tmp_path: Path, number: int) -> None:
    master = MasterProcess(tmp_path)
    try:
        ready = await asyncio.to_thread(master.ready)
        peer = await DirectoryPeer.greeted(ready["directory_port"])
        segment = SegmentPeer(ready["control_port"])
        await segment.attach()
        assert await asyncio.to_thread(master.end, number) == 0
        assert await peer.ended()
        await segment.close()
    finally:
        master.close()
