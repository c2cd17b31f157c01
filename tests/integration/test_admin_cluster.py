"""How `kvstore admin` finds who can answer: real gRPC ports, whose masters have just the role that the test gives them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kvstore.v1 import admin_pb2 as pb

from kvstore.cli.admin.cluster import Cluster, listed
from kvstore.cli.admin.failures import EXIT_UNREACHABLE, AdminFailure
from kvstore.master.clear_watch import ClearWatch
from kvstore.master.metrics import MasterMetrics
from kvstore.master.ports.admin_service import AboutMaster, AdminService
from kvstore.master.ports.control_port import ControlPort, TokenInterceptor
from kvstore.master.ports.control_service import ControlService
from kvstore.master.ports.segment_link import LinkTable
from kvstore.master.roles import Roles, Standby
from kvstore.master.server import MasterServer
from kvstore.master.state.replay import Replay
from kvstore_client.tokens import Tokens
from support.etcd_server import free_ports
from support.master_peers import SegmentPeer, settings

TIMEOUT_MS = 20_000  # of what succeeds, long before it
SHORT_MS = 1500


class RoleOnly:
    """A master's control port, without a metadata store behind it."""

    def __init__(self) -> None:
        self.roles = Roles()
        metrics = MasterMetrics()
        about = AboutMaster("etcd", time.monotonic(), lambda: self.address, lambda: (True, "standby"))
        clears = ClearWatch(lambda: self.address, None)
        control = ControlService(
            self.roles, metrics, LinkTable(metrics, lambda: 0), heartbeat_interval_ms=1000
        )
        self._port = ControlPort(
            control,
            AdminService(self.roles, about, clears),
            TokenInterceptor(Tokens(()), metrics),
            connections_max=100,
        )

    async def start(self) -> None:
        await self._port.start("127.0.0.1", 0)

    async def stop(self) -> None:
        await self._port.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port.port}"

    def stand_by(self, leader_address: str) -> None:
        self.roles.leader_address = leader_address
        self.roles.stand_by(Standby(self.roles, Replay(lambda kind: None), 1))


@pytest.fixture
async def master() -> AsyncIterator[RoleOnly]:
    """It loads until the test says otherwise."""
    started = RoleOnly()
    await started.start()
    yield started
    await started.stop()


@pytest.fixture
async def leader(tmp_path: Path) -> AsyncIterator[MasterServer]:
    server = MasterServer(settings(tmp_path, metadata="memory:"))
    await server.start()
    yield server
    await server.stop()


def address_of(server: MasterServer) -> str:
    return f"127.0.0.1:{server.control_port}"


async def segments(*masters: str, timeout_ms: int = TIMEOUT_MS) -> tuple[list[Any], str]:
    """(what ListSegments says, who has answered)"""
    async with Cluster(masters, "", timeout_ms) as cluster:
        return await listed(cluster, "ListSegments", pb.ListSegmentsRequest()), cluster.answered_by


async def drain(segment_id: bytes, *masters: str, timeout_ms: int = TIMEOUT_MS) -> Any:
    request = pb.SetDrainingRequest(segment_id=segment_id, draining=True)

    async def ask(call: Callable[[str, Any], Awaitable[Any]]) -> Any:
        return await call("SetDraining", request)

    async with Cluster(masters, "", timeout_ms) as cluster:
        return await cluster.change(ask)


async def test_a_standby_leads_the_way_to_a_leader_that_was_not_named(
    master: RoleOnly, leader: MasterServer
) -> None:
    master.stand_by(address_of(leader))
    assert (await segments(master.address))[1] == address_of(leader)
    peer = SegmentPeer(leader.control_port)
    await peer.attach()
    assert (await drain(peer.segment_id, master.address)).draining
    await peer.close()


async def test_the_named_leader_is_taken_whatever_a_standby_calls_it(
    master: RoleOnly, leader: MasterServer
) -> None:
    master.stand_by("not-reachable-from-here.invalid:7441")
    assert (await segments(master.address, address_of(leader)))[1] == address_of(leader)


@pytest.mark.parametrize("known", [True, False], ids=["which is gone", "of which nothing is known"])
async def test_without_a_leader_a_standby_answers_reads_and_changes_wait_in_vain(
    master: RoleOnly, capsys: pytest.CaptureFixture[str], known: bool
) -> None:
    master.stand_by(f"127.0.0.1:{free_ports(1)[0]}" if known else "")
    assert await segments(master.address) == ([], master.address)
    assert "no master leads; this is what the standby" in capsys.readouterr().err
    started = time.monotonic()
    with pytest.raises(
        AdminFailure, match=rf"no master that leads within 1500 ms: {master.address}: standby"
    ) as failed:
        await drain(b"s" * 16, master.address, timeout_ms=SHORT_MS)
    assert failed.value.code == EXIT_UNREACHABLE
    assert 1 < time.monotonic() - started < 6


async def test_a_master_that_loads_is_waited_for(master: RoleOnly) -> None:
    with pytest.raises(AdminFailure, match=r"that is ready within 1500 ms.*: loading") as failed:
        await segments(master.address, timeout_ms=SHORT_MS)
    assert failed.value.code == EXIT_UNREACHABLE
    reading = asyncio.create_task(segments(master.address))
    await asyncio.sleep(0)
    master.stand_by("")
    assert await reading == ([], master.address)


async def test_a_change_waits_for_the_next_leader(master: RoleOnly, leader: MasterServer) -> None:
    peer = SegmentPeer(leader.control_port)
    await peer.attach()
    master.stand_by("")
    changing = asyncio.create_task(drain(peer.segment_id, master.address, timeout_ms=TIMEOUT_MS))
    done, _ = await asyncio.wait({changing}, timeout=0.3)
    assert not done
    master.roles.lead(leader.directory)
    assert (await changing).draining
    await peer.close()


async def test_what_the_leader_refuses_is_final(leader: MasterServer) -> None:
    started = time.monotonic()
    with pytest.raises(AdminFailure, match="no segment 7373") as failed:
        await drain(b"s" * 16, address_of(leader), timeout_ms=30_000)
    assert failed.value.code == 1
    peer = SegmentPeer(leader.control_port)
    await peer.attach()
    known = leader.directory.state.segments.get(peer.segment_id)
    assert known is not None
    known.drain_request = 1  # as while another change is being stored
    with pytest.raises(AdminFailure, match="another change of this segment") as failed:
        await drain(peer.segment_id, address_of(leader), timeout_ms=30_000)
    assert failed.value.code == 1
    assert time.monotonic() - started < 15
    await peer.close()


async def test_a_master_that_takes_connections_and_says_nothing_does_not_hold_up_the_leader(
    leader: MasterServer,
) -> None:
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    assert (await segments(address, address_of(leader)))[1] == address_of(leader)
    async with Cluster((address, address_of(leader)), "", 2 * SHORT_MS) as cluster:
        views = await cluster.survey()
    assert [view.status is not None for view in views] == [False, True]
    assert "no answer within 1500 ms" in views[0].problem
    with pytest.raises(AdminFailure) as failed:
        await segments(address, timeout_ms=SHORT_MS)
    assert failed.value.code == EXIT_UNREACHABLE
    silent.close()


async def test_a_leader_that_is_lost_on_the_way_is_asked_again(leader: MasterServer) -> None:
    peer = SegmentPeer(leader.control_port)
    await peer.attach()
    calls = []

    async def ask(call: Callable[[str, Any], Awaitable[Any]]) -> Any:
        calls.append(1)
        request = pb.SetDrainingRequest(segment_id=peer.segment_id, draining=True)
        if len(calls) == 1:
            # It stands down between the question who leads and the request.
            directory = leader.directory
            leader._roles.stand_by(Standby.resigned(leader._roles, directory.state))
            asyncio.get_running_loop().call_later(0.3, leader._roles.lead, directory)
        return await call("SetDraining", request)

    async with Cluster((address_of(leader),), "", TIMEOUT_MS) as cluster:
        assert (await cluster.change(ask)).draining
    assert len(calls) == 2
    await peer.close()
