"""What a hung member of etcd carries out late takes nothing back."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

from kvstore.common.errors import StoreError
from kvstore.master.metadata.etcd_attendance import EtcdAttendance
from simulation.etcd_model import EtcdModel
from simulation.etcd_transport import SimulatedEtcdClient
from simulation.event_log import EventLog
from simulation.hermetic import hermetic
from simulation.network import Network
from simulation.process import Process
from simulation.virtual_time import VirtualLoop


def test_a_confirmation_that_comes_late_does_not_take_back_a_newer_one() -> None:
    loop = VirtualLoop()
    log = EventLog(loop.time)
    with hermetic(loop, random.Random(1)):
        network = Network(loop, random.Random(2), log)
        etcd = network.servers["etcd"] = EtcdModel(loop, log, 1 << 30)
        client = SimulatedEtcdClient(network, Process(loop, "m0"), timeout_s=0.5)
        attendance = EtcdAttendance(client, b"/kvstore/", b"/kvstore/\x00")
        assert loop.run_until_complete(_confirm_twice(etcd, attendance)) == {"m0": 9}
    loop.close()


async def _confirm_twice(etcd: EtcdModel, attendance: EtcdAttendance) -> dict[str, int]:
    stay = await attendance.enter("m0", 60.0)

    def writes_are_late(method: str, host: Any) -> str | None:
        return "late" if method == "Txn" else None

    etcd.late_s = lambda: 2.0
    etcd.fault = writes_are_late
    with contextlib.suppress(StoreError):  # given up, and not yet carried out
        await attendance.confirm(stay, 5)
    etcd.fault = lambda method, host: None
    await attendance.confirm(stay, 9)
    await asyncio.sleep(5.0)
    return await attendance.confirmed()
