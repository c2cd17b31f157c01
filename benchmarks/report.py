"""Results as Markdown tables, and the bars that this release has to clear."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.measure import Results, Sample


@dataclass(frozen=True)
class Bar:
    """`peer`'s median rate must be at least `ratio_min` times that of `against`."""

    peer: str
    verb: str
    size_bytes: int
    against: str
    ratio_min: float


BARS = tuple(
    Bar("kvstore-tcp", verb, size_bytes, "mooncake", ratio_min)
    for size_bytes, ratio_min in ((64 << 10, 1.5), (1 << 20, 1.2))
    for verb in ("put", "get")
) + tuple(Bar("kvstore-same-host", "get", size_bytes, "memcpy", 0.7) for size_bytes in (64 << 10, 1 << 20))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def rates(samples: Sequence[Sample]) -> list[float]:
    """GB/s of each."""
    return [sample.bytes / sample.seconds / 1e9 for sample in samples]


def cpu_per_gb(samples: Sequence[Sample], side: str) -> str:
    """CPU seconds a GB, over all samples."""
    return f"{sum(getattr(s, side) for s in samples) / sum(s.bytes for s in samples) * 1e9:.2f}"


def ratio(results: Results, verb: str, size_bytes: int, peer: str, against: str) -> float | None:
    """Median rate of `peer` over that of `against`; None when one of them was not measured."""
    mine, other = (results.transfers.get((name, verb, size_bytes)) for name in (peer, against))
    return median(rates(mine)) / median(rates(other)) if mine and other else None


def transfer_table(results: Results) -> str:
    rows = []
    for (peer, verb, size_bytes), samples in sorted(
        results.transfers.items(), key=lambda i: (i[0][2], i[0][1] == "get")
    ):
        rate = rates(samples)
        ratios = [ratio(results, verb, size_bytes, peer, against) for against in ("mooncake", "memcpy")]
        rows.append(
            [
                f"{size_bytes >> 10} KiB",
                verb,
                peer,
                f"{median(rate):.2f}",
                f"{min(rate):.2f}-{max(rate):.2f}",
                *("-" if value is None else f"{value:.2f}" for value in ratios),
                cpu_per_gb(samples, "client_cpu_s"),
                cpu_per_gb(samples, "server_cpu_s"),
            ]
        )
    head = [
        "page",
        "call",
        "peer",
        "GB/s",
        "min-max",
        "/ mooncake",
        "/ memcpy",
        "client CPU-s/GB",
        "server CPU-s/GB",
    ]
    return table(head, rows)


def probe_table(results: Results) -> str:
    rows = []
    for (peer, case, keys), seconds in sorted(
        results.probes.items(), key=lambda item: (item[0][2], item[0][1])
    ):
        other = results.probes.get(("mooncake", case, keys))
        against = f"{median(seconds) / median(other):.2f}" if other else "-"
        times = sorted(value * 1e6 for value in seconds)
        rows.append(
            [str(keys), case, peer, f"{median(times):.0f}", f"{times[int(len(times) * 0.99)]:.0f}", against]
        )
    return table(["keys", "case", "peer", "p50 us", "p99 us", "p50 / mooncake"], rows)


def bar_table(results: Results) -> tuple[str, bool]:
    """(table, whether every bar that could be measured is cleared)"""
    rows, cleared = [], True
    for bar in BARS:
        value = ratio(results, bar.verb, bar.size_bytes, bar.peer, bar.against)
        if value is None:
            verdict = "not measured"
        else:
            verdict = "met" if value >= bar.ratio_min else "MISSED"
            cleared &= value >= bar.ratio_min
        what = f"{bar.peer} {bar.verb} {bar.size_bytes >> 10} KiB / {bar.against}"
        rows.append([what, f"{bar.ratio_min:.1f}", "-" if value is None else f"{value:.2f}", verdict])
    return table(["bar", "at least", "measured", ""], rows), cleared


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def render(results: Results, *, batch: int, repetitions: int, private_network: bool) -> tuple[str, bool]:
    """(the whole report, whether the bars are met and every byte was right)"""
    bars, cleared = bar_table(results)
    where = "a network namespace of its own" if private_network else "the host's network"
    parts = [
        f"{os.cpu_count()} CPUs ({cpu_model()}), Linux {platform.release()}, Python {platform.python_version()}; loopback in {where}. "
        f"Batches of {batch} pages, {repetitions} interleaved repetitions with fresh keys, medians; server, writer and reader are "
        f"processes of their own. Other programs used {results.foreign_cores:.2f} cores meanwhile. "
        f"Pages with a wrong byte: {results.wrong_pages}.",
        transfer_table(results),
        "exists:",
        probe_table(results),
        bars,
    ]
    parts += [f"Not run: {peer}: {reason}." for peer, reason in results.unavailable.items()]
    return "\n\n".join(part for part in parts if part), cleared and results.wrong_pages == 0
