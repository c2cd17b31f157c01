"""0039, weights are named by their content: what it takes to look at a checkpoint, and to ask for the weights' name in
every call.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.decisions.base import Table, median_ms
from hicache_adapter.weight_versions import WeightVersions
from hicache_adapter.weights_fingerprint import weights_fingerprint
from kvstore_client.throttle import ThrottledLog

TENSOR_BYTES = 20_000
CALLS = 10_000


def measure(repetitions: int) -> Table:
    """A checkpoint of few tensors and one of many; the check that each call makes."""
    rows = []
    for tensor_count in (300, 10_000):
        with tempfile.TemporaryDirectory(prefix="kvstore-bench-") as directory:
            _write_checkpoint(Path(directory), tensor_count)
            cpu_ms: list[float] = []

            def look(directory: str = directory, cpu_ms: list[float] = cpu_ms) -> None:
                before = time.process_time()
                weights_fingerprint(Path(directory))
                cpu_ms.append((time.process_time() - before) * 1000)

            wall_ms = median_ms(look, repetitions)
            rows.append([f"{tensor_count} tensors", f"{wall_ms:.1f} ms", f"{median(cpu_ms):.1f} ms"])
    weights = WeightVersions(ThrottledLog(logging.getLogger("hicache_adapter")))

    def ask() -> None:
        for _ in range(CALLS):
            weights.named()

    each_us = median_ms(ask, repetitions) * 1000 / CALLS
    rows.append(["a call's check", f"{each_us:.2f} µs", f"{each_us:.2f} µs"])
    return Table("fingerprint of a checkpoint in the page cache", ["what", "time", "CPU"], rows)


def _write_checkpoint(directory: Path, tensor_count: int) -> None:
    header = {
        f"layers.{number % 60}.experts.{number}.weight": {
            "dtype": "U8",
            "shape": [TENSOR_BYTES],
            "data_offsets": [number * TENSOR_BYTES, (number + 1) * TENSOR_BYTES],
        }
        for number in range(tensor_count)
    }
    encoded = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for _ in range(tensor_count):
            file.write(os.urandom(TENSOR_BYTES))
