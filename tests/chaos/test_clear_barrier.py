"""`kvstore admin clear --wait` returns only when nobody serves what was cleared: real masters on a real etcd, real segments,
some of them stopped or cut off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvstore.cli.main import app
from kvstore_client import protocol
from kvstore_client.protocol import Op, Status
from support import wire
from support.etcd_server import Etcd
from support.master_peers import DirectoryPeer
from support.pool_files import pool_directory
from support.processes import ServerProcess
from support.raw_client import RawClient, key_block
from support.replicated_cluster import Master, ReplicatedCluster
from support.running_cluster import paused
from support.tcp_proxy import TO_CLIENT, TO_SERVER, TcpProxy
from support.waiting import wait_until

UNCONFIRMED = 4
STANDBY_READS_S = 6


class Barrier:
    """Two masters and two segments. The second master reaches etcd through `proxy` and stands by."""

    def __init__(self, directory: Path, etcd: Etcd, proxy: TcpProxy) -> None:
        self.etcd, self.proxy = etcd, proxy
        direct = etcd.uri("test", ttl_s=2, commit_timeout_s=1)
        through = direct.replace(etcd.members[0].endpoint, f"127.0.0.1:{proxy.port}")
        options = (f"--standby-reads-s={STANDBY_READS_S}",)
        self.leader = Master("leader", directory, direct, options)
        self.standby = Master("standby", directory, through, options)
        self.cluster = ReplicatedCluster(directory, direct, masters=0)
        self.cluster.all_masters = [self.leader, self.standby]
        self.segments: list[ServerProcess] = []

    def start(self) -> None:
        self.leader.start()
        self.leader.wait_listening()
        wait_until(self.leader.leads, "the first master leads")
        self.standby.start()
        self.standby.wait_listening()
        wait_until(self.standby.follows, "the second master stands by")
        self.segments = [self.cluster.start_segment(name) for name in ("one", "two")]

    def cut_standby_off(self) -> None:
        for direction in (TO_SERVER, TO_CLIENT):
            self.proxy.stall(direction, 0)

    def admin(self, *arguments: str) -> Result:
        masters = f"127.0.0.1:{self.leader.control_port}"
        return CliRunner().invoke(app, ["admin", *arguments], env={"KVSTORE_ADMIN_MASTER": masters})


@pytest.fixture
def barrier(tmp_path: Path) -> Iterator[Barrier]:
    etcd = Etcd(tmp_path / "etcd").start()
    proxy = TcpProxy(etcd.members[0].client_port)
    rig = Barrier(tmp_path, etcd, proxy)
    try:
        rig.start()
        yield rig
    finally:
        rig.cluster.close()
        proxy.close()
        etcd.close()


class Pages:
    """A namespace with a page on each segment, put past the client so that its places are known."""

    def __init__(self, rig: Barrier, model: str = "weights") -> None:
        self._rig = rig
        self.ns = self.opened_by(rig.leader, model)
        for segment in rig.segments:
            with RawClient(data_port(segment)) as raw:
                status, statuses = raw.put(key_block(self.ns, "page"), [b"old" * 100], True, 5000)
                assert (status, list(statuses)) == (0, [0])
        assert all(map(self.served_by_segment, rig.segments))

    def served_by_segment(self, segment: ServerProcess) -> bool:
        """To a client that knows where the page is."""
        with RawClient(data_port(segment)) as raw:
            prefix, fields, _ = raw.call(Op.GET, wire.GetRequest(key_block(self.ns, "page"), (0,)).encode())
        return prefix.status == Status.OK and wire.GetReply.decode(fields).entries[0].status == 0

    def answer_of(self, master: Master) -> Status:
        """How a master answers a new connection's question for the old epoch."""

        async def ask() -> Status:
            peer = await DirectoryPeer.connect(master.directory_port)
            status, _ = await peer.call(Op.HELLO, protocol.HelloRequest(protocol.Role.CLIENT, "", "test"))
            if status is Status.OK:
                status, _ = await peer.call(Op.EXISTS, wire.ExistsRequest(self.ns, bytes(16)))
            peer.close()
            return status

        return asyncio.run(ask())

    @staticmethod
    def opened_by(master: Master, model: str = "weights") -> bytes:
        async def open_it() -> bytes:
            peer = await DirectoryPeer.greeted(master.directory_port)
            ns = await peer.open_namespace(model=model)
            peer.close()
            return ns

        return asyncio.run(open_it())


def data_port(segment: ServerProcess) -> int:
    return int(segment.wait_event("listening")["port"])


def known_to(master: Master, pages: Pages) -> None:
    wait_until(lambda: pages.answer_of(master) is Status.OK, "the master knows the namespace")


def test_when_the_wait_is_over_no_master_and_no_segment_serves_the_old_epoch(barrier: Barrier) -> None:
    for _ in range(5):  # a confirmation that comes too early shows in one of them
        pages = Pages(barrier)
        known_to(barrier.standby, pages)
        done = barrier.admin("clear", pages.ns.hex(), "--wait", "--yes")
        assert done.exit_code == 0, done.output
        assert "every segment and master has confirmed" in done.stdout
        assert not any(map(pages.served_by_segment, barrier.segments))
        assert pages.answer_of(barrier.leader) is Status.STALE_NAMESPACE
        assert pages.answer_of(barrier.standby) is Status.NOT_LEADER
        assert pages.opened_by(barrier.standby) == pages.opened_by(barrier.leader) != pages.ns


def test_a_stopped_segment_is_waited_for_and_named_until_it_has_confirmed(barrier: Barrier) -> None:
    pages = Pages(barrier)
    hung = barrier.segments[1]
    with paused(hung):
        late = barrier.admin("clear", pages.ns.hex(), "--wait", "--wait-s=3", "--yes")
        assert late.exit_code == UNCONFIRMED, late.output
        assert f"segment 127.0.0.1:{data_port(hung)}" in late.stderr
        assert f"segment 127.0.0.1:{data_port(barrier.segments[0])}:" not in late.stderr
        assert "it is cleared, and after 3 s 1 server may still serve it" in late.stderr
        assert not pages.served_by_segment(barrier.segments[0])
    again = barrier.admin("clear", pages.ns.hex(), "--wait", "--yes")
    assert again.exit_code == 0, again.output
    assert "cleared already" in again.stdout
    assert not pages.served_by_segment(hung)


def test_a_killed_segment_is_waited_for_until_it_has_attached_anew(barrier: Barrier) -> None:
    pages = Pages(barrier)
    barrier.segments[1].kill()
    late = barrier.admin("clear", pages.ns.hex(), "--wait", "--wait-s=1", "--yes")
    assert late.exit_code == UNCONFIRMED, late.output
    barrier.segments[1] = barrier.cluster.start_segment("two")
    assert barrier.admin("clear", pages.ns.hex(), "--wait", "--yes").exit_code == 0


@pytest.mark.parametrize("how", ["kill", "sigterm"])
def test_a_segment_that_comes_back_with_its_pool_serves_nothing_that_was_cleared_while_it_was_away(
    barrier: Barrier, how: str
) -> None:
    with pool_directory() as pools:
        options = (f"--pool-path={pools / 'two'}",)
        assert barrier.segments[1].stop() == 0
        barrier.segments[1] = barrier.cluster.start_segment("two", options=options)
        cleared, kept = Pages(barrier, "weights"), Pages(barrier, "others")
        if how == "kill":
            barrier.segments[1].kill()
        else:
            assert barrier.segments[1].stop() == 0
        late = barrier.admin("clear", cleared.ns.hex(), "--wait", "--wait-s=1", "--yes")
        assert late.exit_code == UNCONFIRMED, "it comes back with what it had"
        assert "segment 127.0.0.1" in late.stderr
        # Without a master it can't know: what it has is not served.
        with paused(barrier.leader.process, barrier.standby.process):
            segment = barrier.cluster.start_segment("two", options=options, wait=False)
            segment.wait_event("listening")
            assert not any(each.served_by_segment(segment) for each in (cleared, kept) for _ in range(20))
        barrier.segments[1] = segment

        def attached_again() -> bool:
            assert not cleared.served_by_segment(segment)
            return kept.served_by_segment(segment)

        wait_until(attached_again, "what was not cleared is served again", 60)
        done = barrier.admin("clear", cleared.ns.hex(), "--wait", "--yes")
        assert done.exit_code == 0, done.output
        assert not cleared.served_by_segment(segment)
        assert kept.served_by_segment(segment)


def test_a_standby_that_is_cut_off_is_waited_for_until_it_answers_reads_no_more(barrier: Barrier) -> None:
    pages = Pages(barrier)
    known_to(barrier.standby, pages)
    barrier.cut_standby_off()
    cut_at = time.monotonic()
    late = barrier.admin("clear", pages.ns.hex(), "--wait", "--wait-s=1", "--yes")
    assert late.exit_code == UNCONFIRMED, late.output
    assert f"master 127.0.0.1:{barrier.standby.control_port}" in late.stderr
    # Reads go on meanwhile, for it may be etcd that is away, and then nothing can be cleared.
    assert pages.answer_of(barrier.standby) is Status.OK
    again = barrier.admin("clear", pages.ns.hex(), "--wait", "--yes")
    assert again.exit_code == 0, again.output
    assert pages.answer_of(barrier.standby) is Status.UNAVAILABLE
    assert time.monotonic() - cut_at < STANDBY_READS_S + 20
    assert "cut off" in barrier.standby.readiness()
    # It comes back with what was cleared meanwhile, and never serves the old epoch again.
    barrier.proxy.release()

    def serves_again() -> bool:
        answer = pages.answer_of(barrier.standby)
        assert answer in (Status.UNAVAILABLE, Status.NOT_LEADER), answer
        return answer is Status.NOT_LEADER

    wait_until(serves_again, "the standby serves again", 30)
    assert pages.opened_by(barrier.standby) == pages.opened_by(barrier.leader)


def test_a_standby_that_was_stopped_does_not_answer_for_what_was_cleared_meanwhile(barrier: Barrier) -> None:
    pages = Pages(barrier)
    known_to(barrier.standby, pages)
    with paused(barrier.standby.process):
        late = barrier.admin("clear", pages.ns.hex(), "--wait", "--wait-s=1", "--yes")
        assert late.exit_code == UNCONFIRMED, late.output
        assert barrier.admin("clear", pages.ns.hex(), "--wait", "--yes").exit_code == 0
    for _ in range(200):
        assert pages.answer_of(barrier.standby) in (Status.UNAVAILABLE, Status.NOT_LEADER)


def test_a_master_that_says_goodbye_is_not_waited_for(barrier: Barrier) -> None:
    pages = Pages(barrier)
    assert barrier.standby.process.stop() == 0
    done = barrier.admin("clear", pages.ns.hex(), "--wait", "--wait-s=3", "--yes")
    assert done.exit_code == 0, done.output
