"""What the disk tier of a segment moves, beside plain O_DIRECT calls on the same file in the same run.

Each round writes and reads the file by plain calls, then by the tier, in one process. Plain writes are of 4 MiB by one
thread, plain reads of one page by as many threads as the tier has. Medians of the rounds, and their range.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

from benchmarks.cases.base import table

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "native-benchmark"
TIMEOUT_S = 900
NAMES = {"plain_write": "O_DIRECT writes", "tier_write": "tier, written", "plain_read": "O_DIRECT reads"}
NAMES["tier_read"] = "tier, read"


def build() -> Path:
    """The native program, compiled with optimisation as the product is."""
    configure = ["cmake", "-S", str(ROOT), "-B", str(BUILD), "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    options = ["-DKVSTORE_BUILD_PYTHON=OFF", "-DKVSTORE_BUILD_BENCHMARKS=ON"]
    subprocess.run([*configure, *options], check=True, stdout=subprocess.DEVNULL)
    target = ["--target", "disk_tier_benchmark", "--parallel", "2"]
    subprocess.run(["cmake", "--build", str(BUILD), *target], check=True, stdout=subprocess.DEVNULL)
    return BUILD / "disk_tier_benchmark"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.disk_tier", description=__doc__)
    parser.add_argument(
        "--directory", type=Path, default=None, help="on the disk that is measured (the temporary one)"
    )
    parser.add_argument(
        "--page-kib", nargs="+", type=int, default=[64, 1024, 2560], help="page sizes (64 1024 2560)"
    )
    parser.add_argument("--total-mib", type=int, default=1024, help="of pages, each round (1024)")
    parser.add_argument("--threads", type=int, default=4, help="that read (4)")
    parser.add_argument("--rounds", type=int, default=3, help="(3)")
    arguments = parser.parse_args()
    program = build()
    body = []
    with tempfile.TemporaryDirectory(prefix="kvstore-disk-", dir=arguments.directory) as directory:
        for page_kib in arguments.page_kib:
            values = rounds(program, Path(directory) / "slab", page_kib, arguments)
            if values["missed"] != [0.0] * arguments.rounds:
                raise SystemExit(f"pages of {page_kib} KiB were not read back: {values['missed']}")
            for name, said in NAMES.items():
                rates, costs = values[f"{name}_gb_per_s"], values[f"{name}_cpu_s_per_gb"]
                body.append([f"{page_kib} KiB", said, spread(rates), spread(costs), ""])
            pages = int(values["recovered"][0])
            body.append(
                [f"{page_kib} KiB", f"index of {pages:,} pages", "", "", spread(values["recovery_ms"])]
            )
    print(table(["pages of", "", "GB/s", "CPU-s a GB", "read back, ms"], body))


def rounds(program: Path, file: Path, page_kib: int, arguments: argparse.Namespace) -> dict[str, list[float]]:
    values: dict[str, list[float]] = defaultdict(list)
    pages = (arguments.total_mib << 10) // page_kib
    for number in range(arguments.rounds):
        command = [
            str(program),
            str(file),
            str(page_kib << 10),
            str(pages),
            str(arguments.threads),
            str(number),
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
        for line in done.stdout.splitlines():
            name, value = line.split()
            values[name].append(float(value))
        file.unlink()
    return values


def spread(values: list[float]) -> str:
    return f"{median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    main()
