"""The whole comparison as Markdown."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from benchmarks.cases import Setting
from benchmarks.cases.base import shown, table
from benchmarks.measure import Results


def render(results: Results, setting: Setting, *, private_network: bool) -> tuple[str, bool]:
    """(the whole report, whether the bars are met and every byte was right)"""
    bars = [bar for case in results.cases for bar in case.bars()]
    where = "a network namespace of its own" if private_network else "the host's network"
    parts = [
        f"{os.cpu_count()} CPUs ({cpu_model()}), Linux {platform.release()}, Python {platform.python_version()}; loopback in {where}. "
        f"Batches of {setting.batch} pages, {setting.repetitions} interleaved repetitions with fresh keys, medians; servers and clients "
        f"are processes of their own. Other programs used {results.foreign_cores:.2f} cores meanwhile. "
        f"Pages with a wrong byte: {results.wrong_pages}.",
        *(case.report() for case in results.cases),
    ]
    if bars:
        rows = []
        for bar in bars:
            verdict = "not measured" if bar.value is None else "met" if bar.cleared else "MISSED"
            side = "at least" if bar.at_least else "at most"
            rows.append([bar.what, f"{side} {bar.bound:g}", shown(bar.value), verdict])
        parts.append(table(["bar", "bound", "measured", ""], rows))
    parts += [f"Not run: {peer}: {reason}." for peer, reason in results.unavailable.items()]
    cleared = all(bar.cleared for bar in bars)
    return "\n\n".join(part for part in parts if part), cleared and results.wrong_pages == 0


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
