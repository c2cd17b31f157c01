"""A real segment (pool, data port, control client) against a master whose every decision the test makes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest
from kvstore.v1 import control_pb2 as pb

from kvstore.common import logs
from kvstore.common.config.segment import SegmentSettings
from kvstore.segment import attach_session
from kvstore.segment.errors import SegmentStartError
from kvstore.segment.run import run
from kvstore.segment.server import SegmentServer
from kvstore_client.protocol import Op
from kvstore_client.protocol.link import EntriesRefusedMessage
from support.raw_client import RawClient, key_block
from support.scripted_master import ScriptedMaster
from support.waiting import BUSY_S

NS = b"n" * 8
OTHER_NS = b"o" * 8
OK, MISS, NOT_COMMITTED = 0, 1, 6


@pytest.fixture
async def master() -> AsyncIterator[ScriptedMaster]:
    scripted = ScriptedMaster()
    scripted.current_namespaces = [NS]
    await scripted.start()
    yield scripted
    await scripted.stop()


@pytest.fixture
async def start_segment(
    master: ScriptedMaster, tmp_path: Path
) -> AsyncIterator[Callable[..., asyncio.Future[SegmentServer]]]:
    started: list[SegmentServer] = []

    async def start(**settings: object) -> SegmentServer:
        merged = {
            "masters": master.address,
            "capacity": "16MiB",
            "port": 0,
            "http_port": 0,
            "unix_path": str(tmp_path / "segment.sock"),
            "data_dir": tmp_path / "data",
            "pool_path": "off",
            **settings,
        }
        server = SegmentServer(SegmentSettings(**merged))  # type: ignore[arg-type]
        await server.start()
        started.append(server)
        return server

    yield start  # type: ignore[misc]
    for server in started:
        await server.stop()


async def until(condition: Callable[[], object], what: str, timeout_s: float = 15.0) -> None:
    ends_at = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends_at, f"waited {timeout_s:g} s in vain: {what}"
        await asyncio.sleep(0.01)


async def put(
    server: SegmentServer, *names: str, committed: bool = True, ns: bytes = NS, timeout_ms: int = 5000
) -> int:
    """Puts a page of a few bytes a name; the status of the request."""

    def exchange() -> int:
        with RawClient(server.addresses.port) as client:
            values = [name.encode() * 3 for name in names]
            return client.put(key_block(ns, *names), values, committed, timeout_ms)[0]

    return await asyncio.to_thread(exchange)


async def get(server: SegmentServer, *names: str, ns: bytes = NS) -> list[bytes | None]:
    def exchange() -> list[bytes | None]:
        with RawClient(server.addresses.port) as client:
            return client.get(key_block(ns, *names))

    return await asyncio.to_thread(exchange)


async def test_a_segment_registers_with_what_clients_need_to_reach_it(start_segment, master) -> None:  # type: ignore[no-untyped-def]
    server = await start_segment(advertise_host="node-7", advertise_port=1234)
    assert await server.wait_attached(10)
    registration = master.registrations[0]
    assert registration.segment_id == server.segment_id
    assert registration.pool_id == server.pool_id
    assert (registration.host, registration.tcp_port) == ("node-7", 1234)
    assert registration.unix_path == server.addresses.unix_path
    assert registration.capacity_bytes == server.store.stats()["capacity_bytes"]


@pytest.mark.parametrize("nonsense", [b"", b"seven b", b"nine byte", b"n" * 100_000], ids=len)
async def test_a_master_that_names_what_can_not_be_a_namespace_is_left_and_asked_again(  # type: ignore[no-untyped-def]
    start_segment, master, nonsense
) -> None:
    master.current_namespaces = [NS, nonsense]
    server = await start_segment()
    await until(lambda: len(master.registrations) >= 2, "the segment tries again")
    assert not server.control.attached
    master.current_namespaces = [NS]
    assert await server.wait_attached(20)
    links = master.links
    master.sends.put_nowait(
        pb.MasterMessage(retire_namespaces=pb.RetireNamespaces(namespaces=[OTHER_NS, nonsense], barrier=7))
    )
    await until(lambda: master.links > links, "the session is over, and another one began")
    assert 7 not in master.retired
    assert await put(server, "a") == OK


async def test_a_committed_put_is_answered_once_its_entry_is_durable(start_segment, master) -> None:  # type: ignore[no-untyped-def]
    server = await start_segment()
    await server.wait_attached(10)
    master.acking = False
    putting = asyncio.create_task(put(server, "a", "b"))
    await until(lambda: len(master.objects) == 2, "the journal reached the master")
    assert not putting.done()
    master.allow_acks()
    assert await putting == OK


async def test_without_an_ack_in_time_a_put_is_sealed_but_not_committed(start_segment, master) -> None:  # type: ignore[no-untyped-def]
    server = await start_segment()
    await server.wait_attached(10)
    master.acking = False
    assert await put(server, "a", timeout_ms=200) == NOT_COMMITTED
    assert await get(server, "a") == [b"aaa"]


async def test_without_a_master_reads_are_served_and_the_journal_resumes_by_itself(
    start_segment, master
) -> None:  # type: ignore[no-untyped-def]
    server = await start_segment()
    await server.wait_attached(10)
    assert await put(server, "before") == OK
    await master.stop()
    await until(lambda: not server.control.attached, "the loss is noticed")
    assert await get(server, "before") == [b"before" * 3]
    assert await put(server, "meanwhile", timeout_ms=100) == NOT_COMMITTED
    await master.start()
    await until(lambda: len(master.objects) == 2, "the journal resumed")
    assert master.inventories == 0
    assert await put(server, "after") == OK
    assert [r.last_seq for r in master.registrations] == [0, 2]


async def test_a_master_that_lost_everything_gets_the_inventory(start_segment, master) -> None:  # type: ignore[no-untyped-def]
    server = await start_segment()
    await server.wait_attached(10)
    assert await put(server, *[f"k{i}" for i in range(40)]) == OK
    await master.stop()
    objects, master.objects, master.durable_seq = dict(master.objects), {}, 0
    await master.start()
    await until(lambda: len(master.objects) == 40, "the inventory arrived")
    assert master.objects == objects
    assert master.inventories == 1
    assert await put(server, "after") == OK


async def test_an_inventory_asked_for_in_mid_stream_is_sent(start_segment, master) -> None:  # type: ignore[no-untyped-def]
    server = await start_segment()
    await server.wait_attached(10)
    assert await put(server, "a", "b") == OK
    master.notify(Op.REQUEST_INVENTORY, b"")
    await until(lambda: master.inventories == 1, "the inventory arrived")
    assert len(master.objects) == 2
    assert await put(server, "c") == OK


async def test_objects_of_a_retired_namespace_are_gone_at_once(start_segment, master) -> None:  # type: ignore[no-untyped-def]
    server = await start_segment()
    await server.wait_attached(10)
    assert await put(server, "a") == OK
    assert await put(server, "a", ns=OTHER_NS) == OK
    master.sends.put_nowait(pb.MasterMessage(retire_namespaces=pb.RetireNamespaces(namespaces=[OTHER_NS])))

    async def gone() -> bool:
        return await get(server, "a", ns=OTHER_NS) == [None]

    ends_at = time.monotonic() + 10
    while not await gone():
        assert time.monotonic() < ends_at
    assert await get(server, "a") == [b"aaa"]


async def test_namespaces_retired_while_the_segment_was_away_are_gone_after_it_attaches(
    start_segment, master
) -> None:  # type: ignore[no-untyped-def]
    server = await start_segment()
    await server.wait_attached(10)
    assert await put(server, "a") == OK
    await master.stop()
    await until(lambda: not server.control.attached, "the loss is noticed")
    master.current_namespaces = [OTHER_NS]
    await master.start()
    assert await server.wait_attached(10)
    assert await get(server, "a") == [None]


async def test_a_master_that_no_longer_knows_the_segment_makes_it_attach_again(start_segment, master) -> None:  # type: ignore[no-untyped-def]
    server = await start_segment()
    await server.wait_attached(10)
    master.known = False
    await until(lambda: len(master.registrations) >= 2, "it registered again")
    master.known = True
    await until(lambda: server.control.attached, "it is attached")
    assert await put(server, "a") == OK


@pytest.mark.parametrize("refuses", [True, False], ids=["master_refuses", "segment_refuses"])
async def test_a_wrong_or_empty_master_wipes_no_pool(
    start_segment, master, caplog: pytest.LogCaptureFixture, refuses: bool
) -> None:  # type: ignore[no-untyped-def]
    server = await start_segment()
    await server.wait_attached(10)
    assert await put(server, "a") == OK
    await master.stop()
    # A master whose records are gone makes a new cluster id, and may give old namespace ids a new meaning.
    right, had = (master.cluster_id, master.durable_seq), dict(master.objects)
    master.cluster_id, master.objects, master.durable_seq = b"d" * 16, {}, 0
    master.checks_cluster = refuses
    await master.start()
    await until(lambda: server.control.clusters_refused >= 3, "it is tried again and again")
    assert master.objects == {} and master.links == 1, "nothing is told to it"
    assert not server.control.attached
    assert await get(server, "a") == [b"aaa"], "its pages are served all the time"
    status, text = await page(server, "/readyz")
    assert status == 503 and right[0].hex() in text and "--adopt-cluster" in text
    lines = [record for record in caplog.records if record.message == "another_cluster"]
    assert len(lines) == 1, "it is not said again and again"
    assert "restart this segment" in lines[0].fields["reason"]
    assert "kvstore_segment_control_clusters_refused_total" in (await page(server, "/metrics"))[1]
    await master.stop()
    (master.cluster_id, master.durable_seq), master.objects = right, had
    await master.start()
    assert await server.wait_attached(10)
    assert await put(server, "b") == OK
    assert master.inventories == 0, "the records are back, and the journal goes on where it was"


async def test_a_segment_whose_first_master_is_of_another_cluster_finds_its_own_behind_it(
    start_segment, master
) -> None:  # type: ignore[no-untyped-def]
    other = ScriptedMaster()
    other.refuse_with = grpc.StatusCode.UNAVAILABLE
    await other.start()
    try:
        server = await start_segment(masters=f"{other.address},{master.address}")
        assert await server.wait_attached(10)
        assert await put(server, "a") == OK
        other.cluster_id, other.refuse_with = b"d" * 16, None
        master.hang_up()
        await until(lambda: server.control.attaches == 2, "it has attached again")
        assert server.control.master == master.address
        assert server.control.clusters_refused >= 1
        assert await get(server, "a") == [b"aaa"]
    finally:
        await other.stop()


async def test_with_adopt_cluster_a_segment_starts_over_with_an_empty_pool_in_another_cluster(
    master, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # type: ignore[no-untyped-def]
    lives: list[SegmentServer] = []
    settings = SegmentSettings(
        masters=master.address,  # type: ignore[arg-type]
        capacity="16MiB",
        port=0,
        http_port=-1,
        unix_path="off",
        data_dir=tmp_path,
        pool_path="off",
        adopt_cluster=True,
    )
    running = asyncio.create_task(run(settings, lives.append))
    try:
        await until(lambda: lives and lives[0].control.attached, "attached")
        assert await put(lives[0], "a") == OK
        await master.stop()
        master.cluster_id, master.objects, master.durable_seq = b"d" * 16, {}, 0
        await master.start()
        await until(lambda: len(lives) == 2 and lives[1].control.attached, "attached with a new pool")
        assert lives[1].segment_id == lives[0].segment_id
        assert lives[1].pool_id != lives[0].pool_id
        assert await get(lives[1], "a") == [None]
        assert await put(lives[1], "b") == OK
        assert "cluster_adopted" in caplog.text
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 10)
    assert master.leaving == ["shutting down"]


async def test_a_master_of_the_previous_release_is_told_to_be_upgraded_first(start_segment, master) -> None:  # type: ignore[no-untyped-def]
    master.has_links = False
    server = await start_segment()
    await until(lambda: len(master.registrations) >= 2, "it is tried again")
    assert not server.control.attached
    assert "upgrade the masters first" in server.control.complaint
    master.has_links = True
    assert await server.wait_attached(10)


async def test_heartbeats_tell_how_full_the_segment_is(start_segment, master) -> None:  # type: ignore[no-untyped-def]
    server = await start_segment()
    await server.wait_attached(10)
    assert await put(server, "a", "b", "c") == OK
    await until(
        lambda: master.link_heartbeats and master.link_heartbeats[-1].object_count == 3, "a heartbeat told"
    )
    beat = master.link_heartbeats[-1]
    assert beat.used_bytes == server.store.stats()["used_bytes"] > 0
    assert not master.heartbeats, "with a link none goes by gRPC"
    assert server.control.heartbeats_sent >= len(master.link_heartbeats)


async def test_heartbeats_go_on_while_the_stream_is_lost_and_refused(start_segment, master) -> None:  # type: ignore[no-untyped-def]
    server = await start_segment()
    await server.wait_attached(10)
    master.refuse_with = grpc.StatusCode.UNAVAILABLE
    master.known = False
    master.hang_up()
    await until(lambda: len(master.registrations) >= 2, "it has tried to attach again")
    beats = len(master.heartbeats)
    await until(lambda: len(master.heartbeats) >= beats + 20, "heartbeats go on")
    beat = master.heartbeats[-1]
    assert (beat.segment_id, beat.pool_id) == (server.segment_id, server.pool_id)
    assert not server.control.attached
    master.refuse_with, master.known = None, True
    assert await server.wait_attached(10)
    assert await put(server, "a") == OK


async def test_streams_that_break_at_once_are_begun_again_ever_more_slowly(start_segment, master) -> None:  # type: ignore[no-untyped-def]
    master.hang_up_after_register = True
    started = time.monotonic()
    await start_segment()
    await until(lambda: len(master.registrations) >= 8, "eight attempts", timeout_s=30)
    # 50 ms, doubled seven times up to 2 s, each at least half of that.
    assert time.monotonic() - started > (0.05 + 0.1 + 0.2 + 0.4 + 0.8 + 1.6 + 2.0) / 2


async def test_entries_that_the_master_refused_are_counted_and_logged(
    start_segment, master, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(logs, "_throttle", logs.LogThrottle())
    server = await start_segment()
    await server.wait_attached(10)
    master.notify(Op.ENTRIES_REFUSED, EntriesRefusedMessage(7, 2, "too long").encode())
    await until(lambda: server.control.pump.entries_refused == 2, "it is counted")

    def records() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.msg == "journal_entries_refused"]

    await until(records, "it is logged")
    (record,) = records()
    assert record.fields == {"entries": 2, "last_seq": 7, "reason": "too long"}
    assert "kvstore_segment_control_entries_refused_total 2.0" in (await page(server, "/metrics"))[1]


async def test_a_namespace_opened_while_the_registration_is_answered_keeps_its_objects(
    start_segment, master
) -> None:  # type: ignore[no-untyped-def]
    server = await start_segment()
    await server.wait_attached(10)
    master.answering.clear()
    master.hang_up()
    await until(lambda: len(master.registrations) == 2, "it registers")
    # The answer is made, and tells nothing of what is opened now.
    assert await put(server, "a", ns=OTHER_NS, timeout_ms=100) == NOT_COMMITTED
    master.answering.set()
    assert await server.wait_attached(10)
    assert await get(server, "a", ns=OTHER_NS) == [b"aaa"]
    await until(lambda: len(master.objects) == 1, "it is announced")


async def test_a_master_that_takes_the_stream_and_never_answers_is_left_for_the_next(
    start_segment, master, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(attach_session, "REGISTER_TIMEOUT_S", 0.3)
    silent = ScriptedMaster()
    silent.answering.clear()
    await silent.start()
    try:
        server = await start_segment(masters=f"{silent.address},{master.address}")
        assert await server.wait_attached(10)
        assert server.control.master == master.address
        assert len(silent.registrations) == 1
    finally:
        await silent.stop()


async def test_an_inventory_holds_nothing_of_a_namespace_that_the_answer_retires(
    start_segment, master
) -> None:  # type: ignore[no-untyped-def]
    master.current_namespaces = [NS, OTHER_NS]
    server = await start_segment()
    await server.wait_attached(10)
    assert await put(server, "a") == OK
    assert await put(server, "b", "c", ns=OTHER_NS) == OK
    await master.stop()
    master.objects, master.durable_seq, master.current_namespaces = {}, 0, [NS]
    await master.start()
    await until(lambda: master.inventories == 1, "the inventory arrived")
    assert len(master.objects) == 1
    assert master.inventoried == 1


async def test_a_refusing_master_is_passed_over_for_the_next_one(start_segment, master) -> None:  # type: ignore[no-untyped-def]
    standby = ScriptedMaster()
    standby.refuse_with = grpc.StatusCode.FAILED_PRECONDITION
    await standby.start()
    try:
        server = await start_segment(masters=f"{standby.address},{master.address}")
        assert await server.wait_attached(10)
        assert server.control.master == master.address
        assert len(standby.registrations) == 1
    finally:
        await standby.stop()


async def test_a_stopping_segment_says_goodbye(start_segment, master) -> None:  # type: ignore[no-untyped-def]
    server = await start_segment()
    await server.wait_attached(10)
    await server.stop("scaled in")
    assert master.leaving == ["scaled in"]


async def test_a_segment_stops_in_good_time_without_a_master(start_segment, master) -> None:  # type: ignore[no-untyped-def]
    await master.stop()
    server = await start_segment()
    started = time.monotonic()
    await server.stop()
    assert time.monotonic() - started < 5


async def test_two_segments_cannot_share_a_data_directory(start_segment) -> None:  # type: ignore[no-untyped-def]
    await start_segment()
    with pytest.raises(SegmentStartError, match="locked by another segment"):
        await start_segment(unix_path="off")


async def test_a_port_that_is_taken_is_a_clear_error_and_frees_what_was_opened(
    start_segment, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    server = await start_segment()
    other = {"data_dir": tmp_path / "other", "unix_path": "off"}
    with pytest.raises(SegmentStartError, match=rf"127.0.0.1:{server.addresses.port}.*--port"):
        await start_segment(port=server.addresses.port, **other)
    with pytest.raises(SegmentStartError, match=rf"127.0.0.1:{server.addresses.http_port}.*--http-port"):
        await start_segment(http_port=server.addresses.http_port, **other)
    await start_segment(**other)


async def test_ready_means_attached_and_metrics_tell_the_rest(start_segment, master) -> None:  # type: ignore[no-untyped-def]
    await master.stop()
    server = await start_segment()
    assert (await page(server, "/healthz"))[0] == 200
    status, text = await page(server, "/readyz")
    assert status == 503 and "not attached to a master" in text
    await master.start()
    assert await server.wait_attached(10)
    assert (await page(server, "/readyz"))[0] == 200
    assert await put(server, "a") == OK
    lines = (await page(server, "/metrics"))[1].splitlines()
    assert "kvstore_segment_object_count 1.0" in lines
    assert "kvstore_segment_puts_total 1.0" in lines
    assert "kvstore_segment_control_attached 1.0" in lines
    assert (
        "kvstore_segment_data_port_connections 0.0" in lines
        or "kvstore_segment_data_port_connections 1.0" in lines
    )


async def page(server: SegmentServer, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.addresses.http_port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    head, _, body = (await asyncio.wait_for(reader.read(), 10)).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def test_a_unix_socket_that_a_cleaner_removed_is_made_anew_and_counted_and_connections_stay(  # type: ignore[no-untyped-def]
    start_segment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "run"
    server = await start_segment(unix_path=str(directory / "segment.sock"))
    path = Path(server.addresses.unix_path)
    with socket.socket(socket.AF_UNIX) as before:
        before.connect(str(path))
        os.unlink(path)
        os.rmdir(directory)
        await until(path.exists, "the socket is there again")
        await until(lambda: "unix_socket_remade" in caplog.text, "it is logged")
        with socket.socket(socket.AF_UNIX) as after:
            after.settimeout(10)
            after.connect(str(path))
            after.sendall(b"no frame of ours, but a long one" * 8)
            # Only the acceptor of the new socket could end it.
            assert await asyncio.to_thread(after.recv, 64) == b""
        before.setblocking(False)
        with pytest.raises(BlockingIOError):
            before.recv(1)
    page = await asyncio.to_thread(
        lambda: urllib.request.urlopen(
            f"http://127.0.0.1:{server.addresses.http_port}/metrics", timeout=10
        ).read()
    )
    assert b"kvstore_segment_data_port_unix_sockets_remade_total 1.0" in page
    await server.stop()
    await until(lambda: not path.exists(), "the new socket goes with the segment, too")


async def test_a_start_that_is_called_off_while_memory_is_touched_ends_within_a_second(  # type: ignore[no-untyped-def]
    start_segment,
) -> None:
    before = shared_bytes()
    starting = asyncio.ensure_future(start_segment(capacity="3GiB"))
    await until(lambda: shared_bytes() - before > 64 << 20 or starting.done(), "memory is being touched")
    assert not starting.done(), "touched already: the pool of this test is too small for this machine"
    began = time.monotonic()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert time.monotonic() - began < 1.0 + BUSY_S
    assert shared_bytes() - before < 64 << 20, "the memory is given back"


def shared_bytes() -> int:
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssShmem:")
    )
    return int(line.split()[1]) * 1024
