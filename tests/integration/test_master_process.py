"""The master as a process of its own: killed, restarted on the same store, misconfigured."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore_client import protocol
from kvstore_client.protocol import Op, Status
from support.master_peers import DirectoryPeer, SegmentPeer, fingerprints, until
from support.master_process import COMMAND, MasterProcess


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


async def test_a_disk_that_fails_takes_puts_away_and_no_reads_and_is_used_again_when_it_works(
    tmp_path: Path,
) -> None:
    master = MasterProcess(tmp_path)
    try:
        ready = await asyncio.to_thread(master.ready)
        peer = await DirectoryPeer.greeted(ready["directory_port"])
        ns = await peer.open_namespace(model="m")
        segment = SegmentPeer(ready["control_port"])
        await segment.attach()
        old, new = fingerprints(64, 1), fingerprints(4000, 2)
        await segment.journal(ns, old)
        await segment.acked()
        assert all(await peer.exists(ns, old))
        epoch = peer.map_epoch

        def limit_files(size_bytes: int) -> None:
            limits = (size_bytes, resource.RLIM_INFINITY)
            resource.prlimit(master.process.pid, resource.RLIMIT_FSIZE, limits)

        # The commit is larger than this, the other files of the process are smaller.
        limit_files(64 << 10)
        await segment.journal(ns, new)
        await until(lambda: master.events("commits_stalled"), "a commit fails")
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + 4
        ready_path = (ready["http_port"], "/readyz")
        while loop.time() < ends_at or await http_status(*ready_path) == 200:
            assert loop.time() < ends_at + 10, "a leader that can't commit is ready"
            assert await http_status(ready["http_port"], "/healthz") == 200
            await segment.heartbeat()
            assert await peer.exists(ns, old) == [True] * 64
            assert not any(await peer.exists(ns, new))
            assert peer.map_epoch == epoch
            await asyncio.sleep(0.05)
        status, text = await peer.call(Op.OPEN_NAMESPACE, protocol.OpenNamespaceRequest(b"{}", "x"))
        assert status is Status.UNAVAILABLE and b"File too large" in text
        assert not segment.call.done()
        reader, writer = await asyncio.open_connection("127.0.0.1", ready["http_port"])
        writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
        why = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        assert b"reads are served" in why and b"File too large" in why

        limit_files(resource.RLIM_INFINITY)
        await segment.acked()
        assert all(await peer.exists(ns, new))
        assert await http_status(*ready_path) == 200
        assert peer.map_epoch == epoch
        await until(lambda: master.events("commits_resumed"), "it says that commits go on")
        assert [len(master.events(name)) for name in ("commits_stalled", "commits_resumed")] == [1, 1]
        assert master.end(signal.SIGKILL) == -signal.SIGKILL
        peer.close()
        await segment.close()
    finally:
        master.close()
    master = MasterProcess(tmp_path)
    try:
        ready = await asyncio.to_thread(master.ready)
        peer = await DirectoryPeer.greeted(ready["directory_port"])
        assert all(await peer.exists(ns, old + new))
        peer.close()
    finally:
        master.close()


BROKEN_STORE = """
import sys
from kvstore.master.metadata import rocksdb

def broken(self, commits, fence, commit=rocksdb.RocksdbStore.commit_together):
    if any(b"poison" in getattr(op, "value", b"") for ops in commits for op in ops):
        self.no_such_attribute
    return commit(self, commits, fence)

rocksdb.RocksdbStore.commit_together = broken
from kvstore.cli.main import main
sys.argv = ["kvstore", "master"]
main()
"""


async def test_a_dead_core_task_ends_the_process_with_one_clear_line(tmp_path: Path) -> None:
    master = MasterProcess(tmp_path, command=["-c", BROKEN_STORE])
    try:
        ready = await asyncio.to_thread(master.ready)
        peer = await DirectoryPeer.greeted(ready["directory_port"])
        assert (await http_status(ready["http_port"], "/readyz")) == 200
        peer.send(Op.OPEN_NAMESPACE, protocol.OpenNamespaceRequest(b'{"poison":1}', "x").encode())
        assert await asyncio.to_thread(master.process.wait, 15) not in (0, -signal.SIGKILL)
        (ended,) = master.events("core_task_ended")
        assert (ended["level"], ended["task"]) == ("critical", "committer")
        assert "no_such_attribute" in ended["why"]
        peer.close()
    finally:
        master.close()


async def http_status(port: int, path: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    head = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return int(head.split()[1])


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
            [sys.executable, *COMMAND],
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


def test_a_start_with_too_few_descriptors_names_the_limit_and_no_port(tmp_path: Path) -> None:
    master = [
        sys.executable,
        "-m",
        "kvstore.cli.entry",
        "master",
        f"--metadata=rocksdb://{tmp_path}/metadata",
    ]
    ports = ["--directory-port=0", "--control-port=0", "--http-port=0"]
    few = ["bash", "-c", 'ulimit -n 16; exec "$@"', "bash", *master, *ports]
    done = subprocess.run(few, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "raise the hard limit (ulimit -Hn" in done.stderr and "another port" not in done.stderr
