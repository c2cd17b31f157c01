"""One run: a seed and options in, what happened out. A run depends on nothing else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

from kvstore.common import core_tasks
from kvstore.master.ha import replica as replica_module
from kvstore.master.state import log_rewrite, segment_indexes, segment_logs
from simulation.client_node import ClientNode, Gone
from simulation.cluster import Cluster, Options
from simulation.event_log import EventLog
from simulation.faults import Fault, draw_faults, schedule
from simulation.hermetic import hermetic
from simulation.master_node import mirror_on
from simulation.oracle import Oracle, Violation
from simulation.process import adopt
from simulation.scenarios import Scenario, options_of
from simulation.settled import unsettled
from simulation.virtual_time import Stuck, VirtualLoop

SWEEP_S = 0.3
POLL_S = 0.4
FINAL_PAGES = (5000, 5004)  # numbers that nobody has used


@dataclass
class Result:
    seed: int
    scenario: Scenario
    options: Options
    violation: Violation | None
    digest: str
    events: int
    virtual_s: float
    faults: list[Fault]
    log: EventLog
    acks: int
    hits: int
    pages_checked: int


def run(seed: int, scenario: Scenario) -> Result:
    loop = VirtualLoop()
    loop.on_task = adopt
    dice = random.Random(seed)
    log = EventLog(loop.time)
    options = options_of(scenario, dice)
    with hermetic(loop, random.Random(dice.getrandbits(64))), small_bounds(options.record_entries_max):
        oracle = Oracle(log, b"/kvstore/")
        faults: list[Fault] = []
        cluster: Cluster | None = None
        try:
            asyncio.set_event_loop(loop)
            cluster = Cluster(loop, dice, log, options, oracle)
            faults = _faults(random.Random(seed ^ 0x5EED), scenario, cluster)
            mirror = mirror_on(cluster.network)
            with mock.patch.object(replica_module, "mirror", mirror), watched_tasks(oracle):
                loop.run_until_complete(_play(cluster, scenario, faults))
        except Stuck as error:
            oracle.violate("no one waits for ever", str(error))
        finally:
            virtual_s = loop.time() - 1000.0
            if cluster is not None:
                _end(loop, cluster)
            asyncio.set_event_loop(None)
            loop.close()
    return Result(
        seed,
        scenario,
        options,
        oracle.violation,
        log.digest,
        log.count,
        virtual_s,
        faults,
        log,
        oracle.acks,
        oracle.hits,
        oracle.pages_checked,
    )


@contextmanager
def watched_tasks(oracle: Oracle) -> Iterator[None]:
    """The product starts again what may end; what does so by an error has a bug all the same."""
    said = core_tasks._why

    def why(task: asyncio.Task[None]) -> str:
        text = said(task)
        if not task.cancelled() and task.exception() is not None:
            oracle.violate("no core task ends of itself", f"{task.get_name()}: {text}")
        return text

    with mock.patch.object(core_tasks, "_why", why):
        yield


def _faults(dice: random.Random, scenario: Scenario, cluster: Cluster) -> list[Fault]:
    count = dice.randint(1, scenario.faults_max)
    drawn = draw_faults(
        dice, scenario.faults, count, scenario.over_s, cluster.master_hosts, cluster.segment_hosts
    )
    return [fault for i, fault in enumerate(drawn) if i not in scenario.drop]


async def _play(cluster: Cluster, scenario: Scenario, faults: list[Fault]) -> None:
    loop, oracle = cluster.loop, cluster.oracle
    broken = loop.create_future()
    oracle.on_violation = lambda: broken.done() or broken.set_result(None)
    playing = asyncio.ensure_future(_acts(cluster, scenario, faults))
    sweeping = asyncio.ensure_future(_sweep_forever(cluster))
    await asyncio.wait({playing, sweeping, broken}, return_when=asyncio.FIRST_COMPLETED)
    for task in (playing, sweeping):
        if task.done():
            task.result()  # a bug of the simulation shows as one
        task.cancel()


async def _acts(cluster: Cluster, scenario: Scenario, faults: list[Fault]) -> None:
    loop = cluster.loop
    await _settle(cluster, scenario.settle_s, "at the start")
    schedule(cluster, faults)
    until = loop.time() + scenario.over_s
    workers = [
        client.process.start(client.work(until, scenario.pause_s), "work")
        for client in cluster.clients.values()
    ]
    await asyncio.wait(workers)
    for worker in workers:
        worker.result()
    await asyncio.sleep(max(0.0, until + 0.01 - loop.time()))
    await _settle(cluster, scenario.settle_s, "after the faults")
    await _puts_work(cluster, scenario.settle_s)
    await _settle(cluster, scenario.settle_s, "at the end")
    cluster.oracle.sweep()


async def _sweep_forever(cluster: Cluster) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        cluster.oracle.sweep()


async def _settle(cluster: Cluster, within_s: float, when: str) -> None:
    ends_at = cluster.loop.time() + within_s
    while (wrong := unsettled(cluster)) is not None:
        if cluster.loop.time() > ends_at:
            cluster.oracle.violate("it comes back to rest", f"{when}, after {within_s:g} s: {wrong}")
        await asyncio.sleep(POLL_S)
    cluster.log.say("oracle", f"all is well {when}")


async def _puts_work(cluster: Cluster, within_s: float) -> None:
    """Whatever has happened, pages are stored again, of each client and namespace."""
    ends_at = cluster.loop.time() + within_s
    for client in cluster.clients.values():
        for identity in cluster.identities:
            while (why := await _not_stored(client, identity)) is not None:
                if cluster.loop.time() > ends_at:
                    cluster.oracle.violate(
                        "puts work again", f"{client.process.host}, after {within_s:g} s: {why}"
                    )
                await asyncio.sleep(POLL_S)


async def _not_stored(client: ClientNode, identity: bytes) -> str | None:
    numbers = list(range(FINAL_PAGES[0], FINAL_PAGES[1]))
    putting = client.process.start(client.put(identity, numbers), "last-put")
    await asyncio.wait({putting})
    try:
        stored = putting.result()
    except Gone as error:
        return str(error)
    return None if stored == len(numbers) else f"{stored} of {len(numbers)} pages were stored"


def _end(loop: VirtualLoop, cluster: Cluster) -> None:
    """Ends all that still runs, so that nothing of one run is left in the next."""
    cluster.kill_all()
    for task in asyncio.all_tasks(loop):
        task.cancel()

    async def wind_down() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    loop.run_until_complete(wind_down())
    loop.run_until_complete(loop.shutdown_asyncgens())


@contextmanager
def small_bounds(record_entries_max: int) -> Iterator[None]:
    """What takes millions of entries or dozens of segments in the field happens in a run of seconds."""
    with (
        mock.patch.object(log_rewrite, "RECORD_ENTRIES_MAX", record_entries_max),
        mock.patch.object(segment_logs, "RECORD_ENTRIES_MAX", record_entries_max),
        mock.patch.object(segment_indexes, "RESTING", 0),
    ):
        yield
