"""Measures a fail-over with many pages: two masters on a real etcd, the one that leads is killed. Prints Markdown.

usage: python -m benchmarks.scale.failover [--pages N]

Runs in a network namespace of its own where it may (as root).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.cases.base import percentile, table
from benchmarks.namespace import enter_private_network
from benchmarks.peers.base import Servers
from benchmarks.peers.kvstore import start_etcd
from benchmarks.scale.__main__ import FIRST_PAGES, KEYS, Helper
from benchmarks.scale.connection import Connection
from benchmarks.scale.master import Master
from benchmarks.scale.pages import BATCH_PAGES, IDENTITY, fingerprints
from benchmarks.scale.segments import SegmentLoad
from kvstore_client.protocol import Op, u32s

SEGMENTS = 16
LEASE_S = 3.0  # etcd's lease of a leader, as masters ask for by default
WAIT_S = 120.0


class Etcd(Servers):
    name = "etcd"
    address = ""

    def start(self) -> None:
        self.address = start_etcd(self)

    def connection(self) -> dict[str, Any]:
        return {"etcd": self.address}


class Reader:
    """Asks a master for pages that are there, all the time."""

    def __init__(self, port: int, ns: bytes) -> None:
        self._port, self._body = port, ns + u32s([KEYS, 0]) + fingerprints(0, KEYS)
        self._over = threading.Event()
        self.took_s: list[float] = []
        self.missed = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with Connection(self._port) as connection:
            while not self._over.wait(0.002):
                began = time.perf_counter()
                found = connection.call(Op.EXISTS, self._body)[8:]
                self.took_s.append(time.perf_counter() - began)
                self.missed += found != b"\xff" * (KEYS // 8)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def wait_for_entries(master: Master, entries: int) -> float:
    """Seconds until its directory has so many. RuntimeError when that takes too long."""
    began = time.monotonic()
    while master.metrics().get("kvstore_master_index_entries", 0) < entries:
        if time.monotonic() - began > WAIT_S:
            raise RuntimeError(f"the standby has {master.metrics()['kvstore_master_index_entries']} entries")
        time.sleep(0.2)
    return time.monotonic() - began


def seconds_until_it_leads(port: int) -> float:
    """Until the master at that port makes a namespace durable, which only a leader does."""
    began = time.monotonic()
    while time.monotonic() - began < WAIT_S:
        try:
            with Connection(port) as connection:
                connection.open_namespace(f'{{"at":"{began}"}}'.encode())
            return time.monotonic() - began
        except (RuntimeError, ConnectionError) as error:  # it stands by, or the cluster is being founded
            why = error
            time.sleep(0.01)
    raise RuntimeError(f"no leader: {why}")


def measure(pages: int, directory: Path) -> list[list[str]]:
    etcd = Etcd(directory, 0)
    masters: list[Master] = []
    segments: Helper | None = None
    try:
        etcd.start()
        for name in ("first", "second"):
            own = directory / name
            own.mkdir()
            masters.append(Master(own, f"etcd://{etcd.address}/scale"))
            masters[-1].start()
            if name == "first":
                seconds_until_it_leads(masters[0].ports["directory_port"])
        leader, standby = masters
        with Connection(leader.ports["directory_port"]) as connection:
            ns = connection.open_namespace(IDENTITY)
        segments = Helper(
            "segments", json.dumps(asdict(SegmentLoad(leader.ports["control_port"], ns.hex(), SEGMENTS)))
        )
        segments.answer()
        batches = -(-(pages - FIRST_PAGES) // BATCH_PAGES)
        for grow in ([0, 1, FIRST_PAGES], [1, batches, BATCH_PAGES]):
            segments.tell({"grow": grow})
            grown = segments.answer()
        total = FIRST_PAGES + batches * BATCH_PAGES
        behind_s = wait_for_entries(standby, total)
        reader = Reader(standby.ports["directory_port"], ns)
        time.sleep(1.0)
        segments.end()  # what it would say of the end of its streams is no matter
        leader.kill()
        took_s = seconds_until_it_leads(standby.ports["directory_port"])
        time.sleep(2.0)
        reader.stop()
        if reader.missed:
            print(f"{reader.missed} answers of the standby missed pages", file=sys.stderr)
        return [
            ["pages in etcd", f"{total:,}, written in {grown['seconds']:.1f} s"],
            ["the standby had them all", f"{behind_s:.1f} s later"],
            ["kill -9 of the leader until the standby leads", f"{took_s:.2f} s (lease {LEASE_S:.0f} s)"],
            [
                f"exists of {KEYS} at the standby meanwhile, p50 / p99 / longest",
                " / ".join(
                    f"{value * 1e3:.2f}"
                    for value in (
                        percentile(reader.took_s, 0.5),
                        percentile(reader.took_s, 0.99),
                        max(reader.took_s),
                    )
                )
                + " ms",
            ],
            ["... answers that missed a page", f"{reader.missed} of {len(reader.took_s)}"],
        ]
    finally:
        if segments is not None:
            segments.end()
        for master in masters:
            master.kill()
        etcd.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.failover", description=__doc__)
    parser.add_argument("--pages", type=int, default=10_000_000, help="default 10000000")
    arguments = parser.parse_args()
    enter_private_network()
    with tempfile.TemporaryDirectory(prefix="kvstore-scale-") as directory:
        print(table(["what", "figure"], measure(arguments.pages, Path(directory))))


if __name__ == "__main__":
    main()
