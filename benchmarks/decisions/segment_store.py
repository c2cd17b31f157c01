"""What the store of a segment takes for a batch, by the number of objects that it holds, in one process without IO."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from pathlib import Path
from statistics import median

from benchmarks.decisions.base import BATCH, Table

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build" / "native-benchmark"
COUNTS = (10_000, 100_000, 1_000_000, 5_000_000)
MIXED_BYTES = 256 << 20
TIMEOUT_S = 600
# The native program's names, and what they say in the table.
COLUMNS = {
    "put_us": "reserve + seal, us",
    "full_put_us": "the same, evicting, us",
    "evict_us": "evict, us",
    "read_us": "find + hold + use + release, us",
    "metadata_bytes": "metadata, bytes an object",
}


def build() -> Path:
    """The native program, compiled with optimisation as the product is."""
    configure = ["cmake", "-S", str(REPOSITORY), "-B", str(BUILD), "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    options = ["-DKVSTORE_BUILD_PYTHON=OFF", "-DKVSTORE_BUILD_BENCHMARKS=ON"]
    subprocess.run([*configure, *options], check=True, stdout=subprocess.DEVNULL)
    target = ["--target", "segment_store_benchmark", "--parallel", "2"]
    subprocess.run(["cmake", "--build", str(BUILD), *target], check=True, stdout=subprocess.DEVNULL)
    return BUILD / "segment_store_benchmark"


def measured(program: Path, what: str, number: int) -> dict[tuple[str, int], list[float]]:
    """What it prints: values by name and number."""
    done = subprocess.run(
        [str(program), what, str(number)], check=True, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    values = defaultdict(list)
    for line in done.stdout.splitlines():
        name, of, value = line.split()
        values[name, int(of)].append(float(value))
    return values


def measure(repetitions: int) -> Table:
    """Batches by number of objects; two readers beside one; a pool filled three times over with mixed sizes."""
    program = build()
    rows = []
    for count in COUNTS:
        values = measured(program, "batches", count)
        rows.append([f"{count:,} objects", *(f"{values[name, count][0]:.0f}" for name in COLUMNS)])
    reads = measured(program, "threads", COUNTS[1])
    one, two = (median(reads["reads_per_s", threads]) for threads in (1, 2))
    rows.append([f"2 threads read: {two / one:.2f} x one, {two / 1e6:.1f} M objects/s", *[""] * len(COLUMNS)])
    mixed = {name: value[0] for (name, _), value in measured(program, "mixed", MIXED_BYTES).items()}
    rows.append(
        [
            f"200 B to 4 MiB, {MIXED_BYTES >> 20} MiB filled 3 x over: {mixed['mixed_refused']:.0f} refused, "
            f"{mixed['mixed_fill']:.3f} full, p99.9 {mixed['mixed_put_p999_us']:.0f} us an object",
            *[""] * len(COLUMNS),
        ]
    )
    return Table(f"batches of {BATCH} objects in the segment's store", ["", *COLUMNS.values()], rows)
