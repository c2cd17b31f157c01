"""Measures one master at scale: a directory that grows to millions of pages, then many clients and segments at a steady rate, then a
restart. Clients and segments are simulated: connections on loopback that speak the real protocols to a real master. Prints Markdown.

Runs in a network namespace of its own where it may (as root).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.cases.base import table
from benchmarks.namespace import enter_private_network
from benchmarks.report import cpu_model
from benchmarks.scale.clients import ClientLoad
from benchmarks.scale.connection import Connection
from benchmarks.scale.master import Master
from benchmarks.scale.pages import BATCH_PAGES, IDENTITY, fingerprints
from benchmarks.scale.segments import SegmentLoad
from kvstore_client.protocol import Op, u32s

FIRST_PAGES = 10_000
KEYS = 128
HEARTBEATS_A_SECOND = 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--clients", type=int, default=1000, help="default 1000")
    parser.add_argument("--segments", type=int, default=200, help="default 200")
    parser.add_argument("--pages", type=int, default=10_000_000, help="default 10000000")
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second of a client (default 4)")
    parser.add_argument(
        "--journal-rate",
        type=float,
        default=100.0,
        help="journal messages a second of all segments (default 100)",
    )
    parser.add_argument(
        "--journal-pages", type=int, default=128, help="pages of such a message (default 128)"
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="of the steady rate (default 15)")
    parser.add_argument(
        "--directory", type=Path, help="where the master's metadata goes (default: a temporary one)"
    )
    parser.add_argument("--out", type=Path, help="write the report to this file too")
    return parser.parse_args()


class Helper:
    """One of the processes that make the load."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._module = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.scale.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def answer(self) -> Any:
        """Its next line: "ready", or JSON."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._module}: ended with {self._process.wait()}")
        return line.strip() if line.startswith("ready") else json.loads(line)

    def tell(self, command: dict[str, Sequence[float]]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def finish(self) -> None:
        """No more commands come."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def milliseconds(values_us: Sequence[float]) -> str:
    return " / ".join(
        f"{each / 1e3:.2f}"
        for each in (percentile(values_us, 0.5), percentile(values_us, 0.99), max(values_us))
    )


def measure(arguments: argparse.Namespace, directory: Path) -> list[list[str]]:
    rows: list[list[str]] = []

    def row(what: str, figure: str) -> None:
        rows.append([what, figure])
        print(f"{what}: {figure}", file=sys.stderr, flush=True)

    master = Master(directory)
    helpers: list[Helper] = []
    try:
        master.start()
        with Connection(master.ports["directory_port"]) as connection:
            ns = connection.open_namespace(IDENTITY)
        load = SegmentLoad(master.ports["control_port"], ns.hex(), arguments.segments)
        segments = Helper("segments", json.dumps(asdict(load)))
        helpers.append(segments)
        row(f"{arguments.segments} segments attached in", f"{segments.answer()['attached_s'] * 1e3:.0f} ms")
        segments.tell({"grow": [0, 1, FIRST_PAGES]})
        segments.answer()

        probe = Helper("probe", str(master.ports["directory_port"]), ns.hex())
        helpers.append(probe)
        probe.answer()
        batches = -(-(arguments.pages - FIRST_PAGES) // BATCH_PAGES)
        cpu = master.cpu_s
        segments.tell({"grow": [1, batches, BATCH_PAGES]})
        grown_s = segments.answer()["seconds"]
        cpu = master.cpu_s - cpu
        probe.finish()
        probed = probe.answer()
        pages = FIRST_PAGES + batches * BATCH_PAGES
        row(
            f"growth from {FIRST_PAGES:,} to {pages:,} pages, as fast as the master takes them",
            f"{grown_s:.1f} s, {pages / grown_s / 1e3:.0f} k pages/s, {cpu / pages * 1e6:.1f} us of CPU a page",
        )
        row(f"... exists of {KEYS} meanwhile, p50 / p99 / longest", f"{milliseconds(probed['took_us'])} ms")
        row(
            "... the probe's own waits for a core, p50 / p99 / longest",
            f"{milliseconds(probed['slept_us'])} ms",
        )
        metrics = master.metrics()
        assert metrics["kvstore_master_index_entries"] == pages
        row("index", f"{metrics['kvstore_master_index_bytes'] / pages:.1f} bytes a page")
        row("resident memory of the master", f"{master.resident_bytes / 2**20:.0f} MiB")
        row(
            "metadata on disk",
            f"{master.metadata_bytes / 2**20:.0f} MiB, {master.metadata_bytes / pages:.1f} bytes a page",
        )

        idle = (master.cpu_s, time.monotonic())
        time.sleep(3)
        idle_share = (master.cpu_s - idle[0]) / (time.monotonic() - idle[1])
        beat_us = idle_share / arguments.segments * 1e6
        row(
            f"master with {arguments.segments} heartbeats a second and nothing else",
            f"{idle_share * 100:.1f} % of a core, at most {beat_us:.0f} us of CPU a heartbeat",
        )
        asking = ClientLoad(
            master.ports["directory_port"],
            ns.hex(),
            arguments.clients,
            arguments.rate,
            KEYS,
            batches,
            FIRST_PAGES,
            arguments.seconds,
        )
        clients = Helper("clients", json.dumps(asdict(asking)))
        helpers.append(clients)
        clients.answer()
        segments.tell(
            {"trickle": [batches + 1, arguments.journal_rate, arguments.journal_pages, arguments.seconds]}
        )
        began, cpu = time.monotonic(), master.cpu_s
        result = clients.answer()
        share = (master.cpu_s - cpu) / (time.monotonic() - began)
        segments.answer()
        rate = result["requests"] / arguments.seconds
        asked_us = (share - idle_share) / rate * 1e6
        row(
            f"{arguments.clients} clients, {rate:.0f} exists and lookups of {KEYS} a second, "
            f"{arguments.journal_rate:.0f} journal messages of {arguments.journal_pages} a second",
            f"{share * 100:.0f} % of a core for the master; {asked_us:.0f} us of CPU a request, journals included",
        )
        row(
            "... latency from when a request was due, p50 / p99 / longest",
            f"{milliseconds(result['latencies_us'])} ms",
        )
        row("... of it: late in the client process", f"{milliseconds(result['late_us'])} ms")
        row("... answers that were wrong", str(result["wrong"]))

        for helper in helpers:
            helper.end()
        master.kill()
        listening_s = master.start()
        start_cpu_s = master.cpu_s
        with Connection(master.ports["directory_port"]) as connection:
            body = ns + u32s([KEYS, 0]) + fingerprints(batches, KEYS)
            found = connection.call(Op.EXISTS, body)[8:]
            assert found == b"\xff" * (KEYS // 8), "a page that was durable is not there after a restart"
        row(
            f"restart after kill -9 until {master.metrics()['kvstore_master_index_entries']:,.0f} pages are served",
            f"{listening_s:.1f} s, {start_cpu_s:.1f} s of it CPU",
        )
        row("resident memory then", f"{master.resident_bytes / 2**20:.0f} MiB")
    finally:
        for helper in helpers:
            helper.end()
        master.kill()
    return rows


def main() -> None:
    arguments = parse_arguments()
    enter_private_network()
    # Every client is a descriptor.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory(prefix="kvstore-scale-", dir=arguments.directory) as directory:
        rows = measure(arguments, Path(directory))
    machine = f"{os.cpu_count()} CPUs ({cpu_model()}), Linux {platform.release()}, Python {platform.python_version()}."
    report = f"{machine}\n\n{table(['what', 'figure'], rows)}"
    print(report)
    if arguments.out:
        arguments.out.write_text(report + "\n")


if __name__ == "__main__":
    main()
